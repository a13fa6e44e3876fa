from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qdeploy.core.artifacts import read_artifact
from qdeploy.core.errors import InputError
from qdeploy.models.shape import ModelShape
from qdeploy.plan import PlanRequest, plan
from qdeploy.plan.accounting import find_accounting
from qdeploy.plan.frontier import Frontier, frontier, frontier_table
from qdeploy.plan.frontier.render import frontier_plot
from qdeploy.plan.job import make_job
from qdeploy.plan.layout import Layout, find_strategy

TINY = ModelShape(
    name="tiny", family="llama", layers=3, hidden_size=64, heads=4, kv_heads=2, head_dim=16,
    intermediate_size=128, vocab_size=32000, max_positions=512,
)  # fmt: skip


def fits(request: PlanRequest, found: Frontier, *, checkpointing: bool, **sizes: int) -> bool:
    """By the parts of the one layout, each time from the beginning."""
    job = make_job(replace(request, **sizes))  # type: ignore[arg-type]
    layout = Layout(find_strategy(found.strategy), "none", checkpointing)
    accounting = find_accounting("deepspeed")
    need = accounting.need_bytes(accounting.per_gpu(job, layout, "device"))
    return need <= accounting.capacity_bytes(job)


def small_gpu(request: PlanRequest, mib: int) -> PlanRequest:
    """`request` on a GPU of which all but `mib` MiB are occupied."""
    free = plan(request).gpu.memory_bytes
    return replace(request, occupied_bytes=free - mib * 2**20)


@pytest.mark.parametrize(("mib", "micro_batch"), [(1200, 1), (1600, 3), (2000, 8)])
def test_every_point_against_brute_force(mib: int, micro_batch: int) -> None:
    request = small_gpu(PlanRequest(model=TINY, gpu="T4", seq_len=96, micro_batch=micro_batch), mib)
    found = frontier(request)
    assert [curve.checkpointing for curve in found.curves] == [True, False]
    for curve in found.curves:
        assert [point.seq_len for point in curve.by_seq_len] == [96, 256, 512]
        for point in curve.by_seq_len:
            size = 0
            while fits(
                request,
                found,
                seq_len=point.seq_len,
                micro_batch=size + 1,
                checkpointing=curve.checkpointing,
            ):
                size += 1
            assert point.micro_batch == size
            assert (point.relative_token_time is None) == (size == 0)
        for point in curve.by_micro_batch:
            longest = max(
                (
                    length
                    for length in range(64, 4 * 512 + 1, 64)
                    if fits(
                        request,
                        found,
                        seq_len=length,
                        micro_batch=point.micro_batch,
                        checkpointing=curve.checkpointing,
                    )
                ),
                default=0,
            )
            assert point.seq_len == longest
            assert point.at_limit == (longest == 4 * 512)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "llama-2-7b", "gpu": "A100-80GB", "gpus": 2},
        {"model": "llama-3.1-70b", "gpu": "H100-80GB", "gpus": 8, "nodes": 2},
        {"model": "7B", "gpu": "RTX-4090", "peft": "qlora", "loss": "liger"},
    ],
)
def test_the_frontier_falls_and_checkpointing_moves_it_out(fields: dict[str, Any]) -> None:
    found = frontier(PlanRequest(**fields))
    with_it, without = found.curves
    for curve in found.curves:
        sizes = [point.micro_batch for point in curve.by_seq_len]
        lengths = [point.seq_len for point in curve.by_micro_batch]
        assert sizes == sorted(sizes, reverse=True)
        assert lengths == sorted(lengths, reverse=True)
    for kept, checkpointed in zip(without.by_seq_len, with_it.by_seq_len, strict=True):
        assert kept.micro_batch <= checkpointed.micro_batch
    times = [p.relative_token_time for curve in found.curves for p in curve.points()]
    assert min(time for time in times if time is not None) == 1.0


def test_it_agrees_with_the_plan() -> None:
    request = PlanRequest(model="llama-2-7b", gpu="A100-80GB", gpus=2, micro_batch=2)
    chosen = plan(request).chosen
    assert chosen is not None
    found = frontier(request)
    assert (found.strategy, found.offload) == (chosen.strategy, chosen.offload)
    assert found.fits
    curve = next(c for c in found.curves if c.checkpointing == chosen.checkpointing)
    assert next(p for p in curve.by_seq_len if p.seq_len == 2048).micro_batch >= 2


def test_a_layout_that_is_asked_for_is_kept() -> None:
    request = PlanRequest(
        model="llama-2-7b", gpu="A100-80GB", gpus=4, strategy="zero2", offload="optimizer"
    )
    found = frontier(request)
    assert (found.strategy, found.offload) == ("zero2", "optimizer")


def test_nothing_fits() -> None:
    found = frontier(PlanRequest(model="llama-3.1-70b", gpu="T4", strategy="none"))
    assert not found.fits
    assert all(not curve.points() for curve in found.curves)
    assert "does not fit" in frontier_plot(found)


def test_a_global_batch_becomes_micro_batches_a_step() -> None:
    request = PlanRequest(
        model="llama-2-7b", gpu="A100-80GB", gpus=2, micro_batch=None, global_batch=32
    )
    found = frontier(request)
    assert found.asked_micro_batch * found.accumulation_steps * 2 == 32


def test_learned_positions_end_the_search() -> None:
    found = frontier(PlanRequest(model="gpt2", gpu="A100-80GB", seq_len=1024))
    point = found.curves[0].by_micro_batch[0]
    assert (point.seq_len, point.at_limit) == (1024, True)


def test_fewer_positions_than_a_step() -> None:
    short = TINY.model_copy(update={"max_positions": 10, "learned_positions": True})
    found = frontier(PlanRequest(model=short, gpu="T4", seq_len=7))
    assert [point.seq_len for point in found.curves[0].by_seq_len] == [7, 10]
    assert (found.step, found.curves[0].by_micro_batch[0].seq_len) == (1, 10)


def test_lengths_divide_over_context_parallel_gpus() -> None:
    request = PlanRequest(
        model="llama-2-7b", gpu="A100-80GB", gpus=6, context_parallel=3, seq_len=3000
    )
    found = frontier(request)
    assert found.step == 192
    for curve in found.curves:
        assert all(p.seq_len % 3 == 0 for p in (*curve.by_seq_len, *curve.by_micro_batch))


def test_json_and_tables(tmp_path: Path) -> None:
    found = frontier(PlanRequest(model="llama-2-7b", gpu="A100-80GB", gpus=2))
    found.write(tmp_path / "frontier.json")
    assert read_artifact(tmp_path / "frontier.json", Frontier) == found
    from rich.console import Console

    console = Console(width=100, record=True, no_color=True, file=(tmp_path / "o").open("w"))
    console.print(frontier_table(found))
    text = console.export_text()
    point = found.curves[0].by_seq_len[0]
    assert f" {point.micro_batch} " in text
    assert "[" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_plot_marks_what_was_asked_for() -> None:
    found = frontier(
        PlanRequest(model="llama-2-7b", gpu="A100-80GB", gpus=2, micro_batch=3, seq_len=1000)
    )
    lines = frontier_plot(found).splitlines()
    row = next(line for line in lines if line.lstrip().startswith("3 │"))
    lengths = [point.seq_len for point in found.curves[0].by_seq_len]
    assert row.index("[") == 8 + 6 * lengths.index(1000)
    sizes = [int(line.split("│")[0]) for line in lines if "│" in line]
    assert sizes == sorted(sizes, reverse=True)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError):
        frontier(PlanRequest(model="no-such-model", gpu="A100-80GB"))
