"""Folding changes no function; the search never loses to leaving alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch

from qdeploy.calib.batches import CalibrationSet
from qdeploy.core.scheme import load_scheme
from qdeploy.models.checkpoint import open_checkpoint
from qdeploy.models.family import family_of, shape_of
from qdeploy.models.source import read_config
from qdeploy.quant.algorithms import smoothquant
from qdeploy.quant.block import BlockWork, record_inputs
from qdeploy.quant.skeleton import Skeleton
from qdeploy.quant.source import open_source
from qdeploy.quant.stream import Stream, StreamBatch

FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gemma3_text", "gpt2"]
DTYPES = [torch.float32, torch.bfloat16]
CPU = torch.device("cpu")


Opened = AbstractContextManager[tuple[BlockWork, Stream]]


@pytest.fixture
def block(make_calibration: Callable[..., CalibrationSet]) -> Callable[..., Opened]:
    """Opens block 0 of a folder and starts a stream of sequences of the given lengths."""

    def start(folder: Path, dtype: torch.dtype, lengths: list[list[int]]) -> Opened:
        return opened(folder, dtype, make_calibration(lengths))

    return start


@contextmanager
def opened(
    folder: Path, dtype: torch.dtype, calibration: CalibrationSet
) -> Iterator[tuple[BlockWork, Stream]]:
    config = read_config(folder)
    family = family_of(config)
    skeleton = Skeleton(folder, family, CPU)
    with open_source(open_checkpoint(folder)) as source:
        pairs = [(b.input_ids, b.attention_mask) for b in calibration.batches]
        batches = []
        for (hidden, calls), (_, mask) in zip(
            skeleton.first_calls(pairs, source), pairs, strict=True
        ):
            real = mask.reshape(-1).bool()
            batches.append(StreamBatch(hidden, real, real.nonzero().flatten(), calls))
        with skeleton.block(0, source) as module:
            dtypes = {name: dtype for name, _ in module.named_parameters()}
            work = BlockWork(
                name=skeleton.block_name(0), index=0, module=module, family=family,
                shape=shape_of(config, "tiny"), scheme=load_scheme("int8"),
                linears=list(family.linears), dtypes=dtypes,
            )  # fmt: skip
            yield work, Stream(batches, CPU)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_folding_leaves_the_block_as_it_was(
    block: Callable[..., Opened], saved: Callable[..., Path], family: str, dtype: torch.dtype
) -> None:
    with block(saved(family, dtype), dtype, [[20, 13]]) as (work, stream):
        record_inputs(work, stream)
        before = stream.run(stream.batches[0], work.module, 0)
        folded = 0
        for pair in work.pairs():
            channels = smoothquant.source_channels(work, pair)
            scales = smoothquant.strength(work, pair, 0.6, channels)
            assert float(scales.max() / scales.min()) > 1.5
            smoothquant.fold(work, pair, scales, channels)
            folded += 1
        after = stream.run(stream.batches[0], work.module, 0)
        real = stream.batches[0].real
        assert folded == len(work.family.pairs) > 0
        assert torch.allclose(
            before.reshape(-1, 48)[real], after.reshape(-1, 48)[real], rtol=1e-3, atol=1e-3
        )
        # What is stored in the source's dtype is stored as it is.
        for pair in work.pairs():
            weight = work.parameter(pair.source, "weight")
            if weight.dim() == 1:
                assert torch.equal(weight, weight.to(dtype).float())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_search_never_loses_to_leaving_alone(
    block: Callable[..., Opened], saved: Callable[..., Path], family: str
) -> None:
    with block(saved(family), torch.bfloat16, [[20, 13]]) as (work, stream):
        record_inputs(work, stream)
        smoothquant.run(work)
        assert len(work.smoothing) == len(work.family.pairs)
        assert all(record.error_after <= record.error_before for record in work.smoothing)
        assert any(record.alpha is not None for record in work.smoothing)


def test_identity_wins_where_nothing_else_is_better(
    block: Callable[..., Opened], saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with block(saved("llama"), torch.bfloat16, [[9]]) as (work, stream):
        record_inputs(work, stream)
        monkeypatch.setattr(smoothquant, "output_error", lambda *_: 0.25)
        before = {name: p.clone() for name, p in work.module.named_parameters()}
        smoothquant.run(work)
        assert [record.alpha for record in work.smoothing] == [None] * 4
        assert all(torch.equal(before[n], p) for n, p in work.module.named_parameters())


def test_grouped_value_channels_feed_the_heads_of_their_group(
    block: Callable[..., Opened], saved: Callable[..., Path]
) -> None:
    with block(saved("qwen3"), torch.bfloat16, [[9]]) as (work, _):
        pair = next(p for p in work.pairs() if p.source == "self_attn.v_proj")
        heads, kv_heads, D = 4, 2, 16
        wanted = [h // (heads // kv_heads) * D + d for h in range(heads) for d in range(D)]
        assert smoothquant.source_channels(work, pair).tolist() == wanted


def test_silent_channels_are_left_alone(
    block: Callable[..., Opened], saved: Callable[..., Path]
) -> None:
    with block(saved("llama"), torch.bfloat16, [[9]]) as (work, stream):
        record_inputs(work, stream)
        pair = work.pairs()[0]
        absmax = work.inputs[pair.linears[0]].absmax.clone()
        absmax[5] = 0.0
        work.inputs[pair.linears[0]].absmax = absmax
        for linear in pair.linears:
            work.weight(linear)[:, 6] = 0.0
        work.parameter(pair.source, "weight")[7] = 0.0
        channels = smoothquant.source_channels(work, pair)
        scales = smoothquant.strength(work, pair, 0.5, channels)
        assert scales[[5, 6, 7]].tolist() == [1.0, 1.0, 1.0]
        assert bool(torch.isfinite(scales).all())


def test_strength_is_the_papers_formula(
    block: Callable[..., Opened], saved: Callable[..., Path]
) -> None:
    with block(saved("llama", torch.float32), torch.float32, [[20]]) as (work, stream):
        record_inputs(work, stream)
        pair = work.pairs()[0]
        found = smoothquant.strength(work, pair, 0.7, smoothquant.source_channels(work, pair))
        for j in range(48):
            x = max(abs(float(v)) for v in work.inputs[pair.linears[0]].rows[:, j])
            w = max(abs(float(v)) for n in pair.linears for v in work.weight(n)[:, j])
            assert float(found[j]) == pytest.approx(x**0.7 / w**0.3, rel=1e-4)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text", "gpt2"])
def test_padding_never_counts(
    block: Callable[..., Opened], saved: Callable[..., Path], family: str
) -> None:
    folder = saved(family, torch.float32)
    lengths = [20, 13, 1, 7]
    with block(folder, torch.float32, [lengths]) as (work, stream):
        record_inputs(work, stream)
        together = work.inputs
    with block(folder, torch.float32, [[n] for n in lengths]) as (work, stream):
        record_inputs(work, stream)
        for linear, alone in work.inputs.items():
            assert together[linear].rows.shape == alone.rows.shape == (41, alone.rows.shape[1])
            assert torch.allclose(together[linear].absmax, alone.absmax, rtol=1e-3, atol=1e-4)
            assert torch.allclose(together[linear].rows, alone.rows, rtol=1e-3, atol=1e-4)
