import hashlib

import pytest
import torch

from qdeploy.calib.batches import calibration_set, chunks
from qdeploy.calib.data import read_data
from qdeploy.calib.template import token_ids
from qdeploy.core.errors import InputError

from .conftest import byte_tokenizer

# Drawn by seed 0 of 50 rows: the keys are random(), so no Python or platform may change it.
PINNED = ["040", "035", "025", "046", "048", "043"]


def sequences(calibration):
    """The samples without padding, told by the mask."""
    return [
        ids[mask.bool()].tolist()
        for batch in calibration.batches
        for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    ]


def texts(*lengths):
    return [{"text": chr(97 + index % 26) * length} for index, length in enumerate(lengths)]


def test_every_row_is_in_a_batch_unchanged(write_rows, tokenizer):
    path = write_rows([*texts(5, 1, 30, 12, 7), {"prompt": "问<eos>", "response": "答"}])
    found = calibration_set(path, tokenizer, samples=6, max_seq_len=64, batch_size=4)
    expected = [token_ids(row, tokenizer) for row in read_data(path)]
    assert sorted(sequences(found)) == sorted(expected)
    lengths = [len(ids) for ids in sequences(found)]
    assert lengths == sorted(lengths, reverse=True)
    assert [batch.input_ids.shape for batch in found.batches] == [(4, 31), (2, 6)]
    assert (found.samples, found.truncated, found.rows, found.drawn_rows) == (6, 0, 6, 6)
    assert found.tokens == sum(map(len, expected))


@pytest.mark.parametrize("eos", ["<eos>", "<bos>", None])
def test_padding_is_right_masked_and_never_eos(write_rows, eos):
    tokenizer = byte_tokenizer(eos=eos)
    path = write_rows([{"text": "abcdef"}, {"text": "a<eos>"}])
    (batch,) = calibration_set(path, tokenizer, samples=2).batches
    assert batch.input_ids.dtype == batch.attention_mask.dtype == torch.int64
    assert batch.attention_mask.tolist() == [[1] * 7, [1] * 3 + [0] * 4]
    padding = batch.input_ids[batch.attention_mask == 0]
    assert (padding != tokenizer.eos_token_id).all() if eos else True
    assert batch.input_ids[1, 2] == 0  # a real <eos> stays a real token


def test_sampling_is_seeded_without_replacement(write_rows, tokenizer):
    path = write_rows([{"text": f"row {number:03d}"} for number in range(50)])

    def drawn(seed):
        return calibration_set(path, tokenizer, samples=20, seed=seed)

    assert drawn(1).digest == drawn(1).digest != drawn(2).digest
    assert sequences(drawn(1)) == sequences(drawn(1))
    assert len({tuple(ids) for ids in sequences(drawn(1))}) == 20
    assert [tokenizer.decode(ids)[-3:] for ids in sequences(drawn(0))][:6] == PINNED


def test_digest_is_over_settings_and_ids(write_rows, tokenizer):
    path = write_rows(texts(4, 9, 2))
    found = calibration_set(path, tokenizer, samples=3, max_seq_len=16, batch_size=2, seed=5)
    settings = [("batch_size", 2), ("max_seq_len", 16), ("samples", 3), ("seed", 5)]
    lines = [str(settings), *(",".join(map(str, ids)) for ids in sequences(found))]
    assert found.digest == hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert found.files == {"data.jsonl": hashlib.sha256(path.read_bytes()).hexdigest()}
    other = calibration_set(path, tokenizer, samples=3, max_seq_len=17, batch_size=2, seed=5)
    assert other.digest != found.digest


@pytest.mark.parametrize("length", [0, 1, 9, 10, 11, 20, 21, 99])
def test_chunks_lose_nothing_and_leave_no_stub(length):
    ids = list(range(length))
    pieces = chunks(ids, 10)
    assert [token for piece in pieces for token in piece] == ids
    assert len(pieces) == (length + 9) // 10
    sizes = {len(piece) for piece in pieces}
    assert not sizes or (max(sizes) <= 10 and max(sizes) - min(sizes) <= 1)


def test_long_rows_are_chunked_and_counted(write_rows, tokenizer, capsys):
    path = write_rows(texts(24, 3))  # 25 tokens: three chunks of at most 10
    found = calibration_set(path, tokenizer, samples=10, max_seq_len=10)
    assert sorted(map(len, sequences(found))) == [4, 8, 8, 9]
    assert (found.samples, found.tokens, found.truncated) == (4, 29, 1)
    assert found.left_out_chunks == 0
    assert "4 calibration samples, fewer than the 10 asked for" in capsys.readouterr().err


def test_samples_bounds_the_work_and_every_drawn_row_counts(write_rows, tokenizer, capsys):
    path = write_rows(texts(1000, 5, 5))
    found = calibration_set(path, tokenizer, samples=4, max_seq_len=10)
    assert found.samples == 4
    assert (found.drawn_rows, found.truncated, found.left_out_chunks) == (3, 1, 99)
    assert len({ids[-1] for ids in sequences(found)}) == 3
    assert capsys.readouterr().err == ""
    fewer = calibration_set(path, tokenizer, samples=2, max_seq_len=10)
    assert (fewer.samples, fewer.drawn_rows, fewer.rows) == (2, 2, 3)


def test_later_chunks_of_long_rows_are_drawn_too(write_rows, tokenizer):
    path = write_rows([{"text": "q" * 19 + "a" * 20}] * 40)
    found = calibration_set(path, tokenizer, samples=40, max_seq_len=20)
    ends = {tokenizer.decode(ids[-1:]) for ids in sequences(found)}
    assert ends == {"q", "a"}


def test_folder_files_are_named_relative(tmp_path, write_rows, tokenizer):
    write_rows(texts(3), "set/b/中文.jsonl")
    write_rows(texts(4), "set/a.jsonl")
    found = calibration_set(tmp_path / "set", tokenizer, samples=2)
    assert list(found.files) == ["a.jsonl", "b/中文.jsonl"]


def test_zero_tokens_is_an_error(write_rows):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))  # what it does not know vanishes
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    with pytest.raises(InputError, match="2 rows gave no tokens"):
        calibration_set(write_rows([{"text": "甲"}, {"text": "乙"}]), tokenizer)


@pytest.mark.parametrize("name", ["samples", "max_seq_len", "batch_size"])
def test_settings_must_be_positive(write_rows, tokenizer, name):
    with pytest.raises(InputError, match=f"{name} must be at least 1, found 0"):
        calibration_set(write_rows(texts(3)), tokenizer, **{name: 0})
