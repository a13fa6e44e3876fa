from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qdeploy.calib.data import read_data
from qdeploy.core.errors import InputError
from qdeploy.core.schema import validate
from qdeploy.train.data import Prepared, prepare, run_tokenizer
from qdeploy.train.labels import sample_of
from qdeploy.train.recipe import Recipe


def prepared(fields: dict[str, Any], **data: Any) -> Prepared:
    document = {**fields, "data": {**fields["data"], **data}}
    recipe = validate(Recipe, document, "recipe")
    return prepare(recipe, run_tokenizer(recipe, Path(recipe.model)))


def rows_file(tmp_path: Path, *rows: dict[str, Any]) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return str(path)


def tokens_of(found: Prepared) -> list[int]:
    return sorted(token for ids in found.train["input_ids"] for token in ids)


def test_rows_become_samples_in_order(fields: dict[str, Any], chats: Path) -> None:
    found = prepared(fields)
    tokenizer = run_tokenizer(validate(Recipe, fields, "recipe"), Path(fields["model"]))
    whole = [sample_of(row, tokenizer, assistant_only=True) for row in read_data(chats)]
    assert found.train["input_ids"] == [sample.input_ids[:128] for sample in whole]
    assert found.train["labels"] == [sample.labels[:128] for sample in whole]
    assert found.counts.rows == found.counts.samples == found.counts.sequences == 16
    assert found.counts.tokens == sum(min(len(s.input_ids), 128) for s in whole)
    assert found.evaluation is None


def test_long_samples_are_cut_and_empty_ones_dropped(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    fields["batch"] = {"micro_batch": 1, "accumulation_steps": 1}
    path = rows_file(
        tmp_path,
        {"prompt": "a", "response": "b" * 200},
        {"prompt": "a" * 200, "response": "b"},
        {"messages": [{"role": "user", "content": "a"}]},
    )
    counts = prepared(fields, path=path, seq_len=40).counts
    assert (counts.rows, counts.samples, counts.cut, counts.dropped) == (3, 1, 2, 2)
    assert counts.tokens == 40


def test_all_too_long(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"within data\.seq_len 4 no sample") as caught:
        prepared(fields, seq_len=4)
    needed = int(str(caught.value.hint).split("data.seq_len to ")[1].split()[0])
    fields["batch"] = {"micro_batch": 1, "accumulation_steps": 1}
    assert prepared(fields, seq_len=needed).counts.samples >= 1
    with pytest.raises(InputError):
        prepared(fields, seq_len=needed - 1)


def test_no_answers(fields: dict[str, Any], tmp_path: Path) -> None:
    path = rows_file(tmp_path, {"messages": [{"role": "user", "content": "a"}]})
    with pytest.raises(InputError, match="no row has an answer"):
        prepared(fields, path=path)


def test_empty_file(fields: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no rows"):
        prepared(fields, path=rows_file(tmp_path))


def test_fewer_samples_than_a_step(fields: dict[str, Any]) -> None:
    fields["batch"] = {"micro_batch": 1, "accumulation_steps": 17}
    with pytest.raises(InputError, match="gives 16 samples, one optimizer step takes 17"):
        prepared(fields)
    fields["batch"] = {"micro_batch": 1, "accumulation_steps": 16}
    assert prepared(fields).counts.sequences == 16


def test_packing_keeps_every_token(fields: dict[str, Any]) -> None:
    fields["batch"] = {"micro_batch": 1, "accumulation_steps": 1}
    plain, packed = prepared(fields), prepared(fields, packing=True)
    assert packed.counts.sequences < 16
    assert tokens_of(packed) == tokens_of(plain)
    for ids, lengths in zip(packed.train["input_ids"], packed.train["seq_lengths"], strict=True):
        assert len(ids) == sum(lengths) <= 128


def test_a_share_is_kept_for_evaluation(fields: dict[str, Any]) -> None:
    fields["eval"] = {"share": 0.25}
    found = prepared(fields)
    assert found.evaluation is not None
    assert (len(found.train), len(found.evaluation)) == (12, 4)
    together = [*found.train["input_ids"], *found.evaluation["input_ids"]]
    assert sorted(together) == sorted(prepared({**fields, "eval": {}}).train["input_ids"])
    assert prepared(fields).digest == found.digest
    assert prepared({**fields, "seed": 1}).digest != found.digest


def test_a_share_of_everything_is_refused(fields: dict[str, Any]) -> None:
    fields["eval"] = {"share": 0.99}
    with pytest.raises(InputError, match="leaves nothing to train on"):
        prepared(fields)


def test_the_digest_is_of_ids_and_labels(fields: dict[str, Any]) -> None:
    digest = prepared(fields).digest
    assert prepared(fields).digest == digest
    assert prepared(fields, assistant_only_loss=False).digest != digest
    assert prepared(fields, seq_len=60).digest != digest


def test_the_recipes_template(fields: dict[str, Any], tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}")
    own = prepared(fields, chat_template=str(template))
    assert own.counts.tokens < prepared(fields).counts.tokens
    template.write_text("{% for m in messages %}")
    with pytest.raises(InputError, match="no usable template"):
        prepared(fields, chat_template=str(template))
    with pytest.raises(InputError, match=r"cannot read data\.chat_template"):
        prepared(fields, chat_template=str(tmp_path / "missing.jinja"))


def test_templates_run_in_a_sandbox(fields: dict[str, Any], tmp_path: Path) -> None:
    template = tmp_path / "bad.jinja"
    template.write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(InputError, match="no usable template"):
        prepared(fields, chat_template=str(template))
