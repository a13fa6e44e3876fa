"""What one GPU holds under tensor, pipeline, expert and context parallelism, added up by hand."""

from __future__ import annotations

from typing import Any

import pytest

from qdeploy.models.shape import ModelShape
from qdeploy.plan.rank import Count, Rank

LLAMA = ModelShape(
    name="small", family="llama", layers=6, hidden_size=64, heads=8, kv_heads=4, head_dim=8,
    intermediate_size=160, vocab_size=1000, max_positions=128,
)  # fmt: skip
MOE = LLAMA.model_copy(
    update={"experts": 8, "experts_per_token": 2, "expert_intermediate_size": 32, "dense_layers": 1}
)

ATTENTION = 64 * (64 + 32 + 32 + 64)
MLP = 3 * 64 * 160
NORMS = 2 * 64
TABLE = 1000 * 64


def test_one_gpu_holds_everything() -> None:
    whole = 6 * (ATTENTION + MLP + NORMS) + 2 * TABLE + 64
    assert Rank(LLAMA).parameters == Count(whole)
    assert whole == LLAMA.parameters


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_tensor_parallelism_leaves_norms_whole(tensor: int) -> None:
    block = (ATTENTION + MLP) // tensor + NORMS
    rank = Rank(LLAMA, tensor=tensor)
    assert rank.block(moe=False) == Count(block)
    assert rank.parameters == Count(6 * block + 2 * (TABLE // tensor) + 64)


def test_pipeline_stages_share_the_blocks() -> None:
    block = ATTENTION + MLP + NORMS
    first, last = Rank(LLAMA, pipeline=3, stage="first"), Rank(LLAMA, pipeline=3, stage="last")
    assert (first.blocks, last.blocks) == ((2, 0), (2, 0))
    assert first.parameters.total == 2 * block + TABLE + 64
    assert last.parameters.total == 2 * block + TABLE + 64
    tied = LLAMA.model_copy(update={"tied_embeddings": True})
    assert Rank(tied, pipeline=3, stage="last").head == TABLE  # a copy of the embedding


def test_a_pipeline_that_does_not_divide_rounds_up() -> None:
    assert Rank(LLAMA, pipeline=4, stage="first").blocks == (2, 0)


def test_experts_are_counted_apart() -> None:
    expert = 3 * 64 * 32
    router = 8 * 64
    rank = Rank(MOE)
    assert rank.blocks == (1, 5)
    assert rank.block(moe=True) == Count(ATTENTION + NORMS + router, 8 * expert)
    assert rank.parameters.total == MOE.parameters
    halved = Rank(MOE, expert=2).block(moe=True)
    assert halved == Count(ATTENTION + NORMS + router, 4 * expert)
    stages = [Rank(MOE, pipeline=2, stage=stage).blocks for stage in ("first", "last")]
    assert stages == [(1, 2), (0, 3)]


def test_linears_are_counted_for_each_block() -> None:
    counts = [(linear.name, count) for linear, count in Rank(MOE, expert=4).linears]
    assert ("q_proj", 6) in counts
    # One dense MLP, and two of eight experts in each of five blocks.
    assert [count for name, count in counts if name == "down_proj"] == [1, 10]


def test_experts_are_sharded_over_fewer_gpus(planning: Any) -> None:
    job = planning.job(model=MOE, gpus=8, expert_parallel=4)
    experts = 5 * 2 * 3 * 64 * 32
    assert job.held.experts == experts
    assert job.divided(Count(800, experts)) == 100 + experts // 2


def test_context_parallel_gpus_share_weights(planning: Any) -> None:
    job = planning.job(gpus=8, context_parallel=4, seq_len=4096, micro_batch=2)
    assert job.tokens == 2 * 1024
    assert job.request.data_parallel == 2
    assert job.divided(Count(80)) == 10


def test_a_bare_size_keeps_its_count(planning: Any) -> None:
    assert planning.job(model="7B").held == Count(7 * 10**9)
    assert planning.job(model="7B", gpus=2, tensor_parallel=2).held.total == pytest.approx(
        3.5e9, rel=0.001
    )
