"""torchtune's block, written down from its operations, against the closed formula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from qdeploy.core.errors import InputError
from qdeploy.models.shape import ModelShape
from qdeploy.plan.losses import find_loss
from qdeploy.plan.saved import BlockRun, saved_bytes
from qdeploy.plan.trainers import find_trainer
from qdeploy.plan.trainers.torchtune import block, working_bytes

from .held import TOKENS, backward_bytes, block_bytes

LLAMA = ModelShape(
    name="small", family="llama", layers=2, hidden_size=64, heads=4, kv_heads=2, head_dim=16,
    intermediate_size=176, vocab_size=96, max_positions=128,
)  # fmt: skip
RUN = BlockRun(
    shape=LLAMA, moe=False, compute_bytes=2, residual_bytes=2, autocast=False, attention="sdpa",
    keys=TOKENS, padded=False, trained=None, adapted=frozenset(),
)  # fmt: skip
QUERIES_VALUES = frozenset({"q_proj", "v_proj"})
ALL = QUERIES_VALUES | {"k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
LORA = replace(RUN, trained=frozenset(), lora_rank=4)
ANGLES = torch.ones(512, 32, 2)


class Norm(torch.nn.Module):
    """RMSNorm of an FP32 copy, with a scale in BF16: no fused kernel takes both."""

    def __init__(self, width: int, *, trained: bool) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(width), requires_grad=trained)

    def forward(self, x: Any) -> Any:
        scaled = functional.rms_norm(x.float(), self.scale.shape, self.scale, 1e-6)
        return scaled.to(x.dtype)


class Linear(torch.nn.Module):
    def __init__(self, run: BlockRun, name: str, inputs: int, outputs: int) -> None:
        super().__init__()
        full = run.trained is None
        self.rate = 0.05 * run.lora_dropout
        self.weight = torch.nn.Parameter(torch.randn(outputs, inputs) / 8, requires_grad=full)
        if name in run.adapted:
            self.a = torch.nn.Parameter(torch.randn(run.lora_rank, inputs))
            self.b = torch.nn.Parameter(torch.randn(outputs, run.lora_rank))

    def forward(self, x: Any) -> Any:
        y = functional.linear(x, self.weight)
        if not hasattr(self, "a"):
            return y
        if self.rate:
            x, _ = torch.native_dropout(x, self.rate, True)  # what dropout is on a GPU
        return y + 2 * functional.linear(functional.linear(x, self.a), self.b)


def rotated(x: Any) -> Any:
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    angles = ANGLES[: x.shape[1], : pairs.shape[-2]].unsqueeze(1)
    turned = torch.stack(
        [
            pairs[..., 0] * angles[..., 0] - pairs[..., 1] * angles[..., 1],
            pairs[..., 1] * angles[..., 0] + pairs[..., 0] * angles[..., 1],
        ],
        -1,
    )
    return turned.flatten(3).type_as(x)


class Block(torch.nn.Module):
    def __init__(self, run: BlockRun) -> None:
        super().__init__()
        self.shape = shape = run.shape
        linears = [*shape.attention_linears, *shape.mlp_linears]
        self.linears = torch.nn.ModuleDict(
            {each.name: Linear(run, each.name, each.in_features, each.out_features)
             for each in linears}
        )  # fmt: skip
        full = run.trained is None
        widths = [shape.hidden_size] * 2 + [shape.head_dim] * 2 * shape.qk_norm
        self.norms = torch.nn.ModuleList(Norm(width, trained=full) for width in widths)

    def forward(self, x: Any) -> Any:
        h = self.attention(self.norms[0](x)) + x
        y, linears = self.norms[1](h), self.linears
        y = functional.silu(linears["gate_proj"](y)) * linears["up_proj"](y)
        return h + linears["down_proj"](y)

    def attention(self, x: Any) -> Any:
        q, k, v = (
            self.linears[name](x).view(*x.shape[:2], -1, self.shape.head_dim)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        q, k, v = (each.transpose(1, 2) for each in (rotated(q), rotated(k), v))
        if self.shape.qk_norm:
            q, k = self.norms[2](q), self.norms[3](k)
        groups = self.shape.heads // self.shape.kv_heads
        k, v = (each.unsqueeze(2).expand(-1, -1, groups, -1, -1).flatten(1, 2) for each in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.linears["o_proj"](y.transpose(1, 2).contiguous().view(x.shape))


def closed(run: BlockRun) -> int:
    return saved_bytes(run, block(run), tensor=1, sequence=1)


SETTINGS = {
    "full": RUN,
    "qk_norm": replace(RUN, shape=LLAMA.model_copy(update={"qk_norm": True})),
    "queries and values": replace(LORA, adapted=QUERIES_VALUES),
    "queries and values, dropout": replace(LORA, adapted=QUERIES_VALUES, lora_dropout=True),
    "all linears": replace(LORA, adapted=ALL),
    "all linears, dropout": replace(LORA, adapted=ALL, lora_dropout=True),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_a_block_keeps(name: str) -> None:
    run = SETTINGS[name]
    counted = block_bytes(
        lambda: Block(run), lambda made, x: made(x), hidden=64, dtype=torch.bfloat16
    )
    assert closed(run) == pytest.approx(counted, rel=0.01)


def test_a_four_bit_base_keeps_no_more() -> None:
    run = replace(LORA, adapted=ALL)
    assert closed(replace(run, quantized_base=True)) == closed(run)


@pytest.mark.parametrize("name", ["full", "queries and values, dropout", "all linears"])
def test_a_compiled_block_keeps_less(name: str) -> None:
    """By AOTAutograd's partitioner, which needs no compiler for a GPU."""
    torch.compiler.reset()
    run = replace(SETTINGS[name], compiled=True)
    counted = []
    for count in (1, 2):
        made = [Block(run).bfloat16() for _ in range(count)]
        compiled = [torch.compile(each, backend="aot_eager_decomp_partition") for each in made]
        known = {p.untyped_storage()._cdata for each in made for p in each.parameters()}
        kept: dict[int, Any] = {}

        def pack(tensor: Any, kept: dict[int, Any] = kept, known: set[int] = known) -> Any:
            storage = tensor.untyped_storage()
            if storage._cdata not in known | {ANGLES.untyped_storage()._cdata}:
                kept[storage._cdata] = storage
            return tensor

        y = torch.randn(1, TOKENS, 64, dtype=torch.bfloat16, requires_grad=True) * 1
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            for each in compiled:
                y = each(y)
        counted.append(sum(storage.nbytes() for storage in kept.values()))
    assert closed(run) == pytest.approx((counted[1] - counted[0]) / TOKENS, rel=0.02)
    assert closed(run) < closed(SETTINGS[name])


def test_backward_gradients() -> None:
    wide = LLAMA.model_copy(update={"hidden_size": 256, "head_dim": 64, "intermediate_size": 704})
    run = replace(RUN, shape=wide)
    counted = backward_bytes(lambda: Block(run), hidden=256)
    assert working_bytes(run) == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moe": True}, "mixture of experts"),
        ({"attention": "eager"}, "scaled_dot_product_attention"),
        ({"autocast": True}, "pure 16-bit"),
        ({"recompute": "attention"}, "recomputation of attention"),
        ({"shape": LLAMA.model_copy(update={"norm": "layer"})}, "RMSNorm"),
        ({"shape": LLAMA.model_copy(update={"gated_mlp": False})}, "without a gate"),
        ({"shape": LLAMA.model_copy(update={"parallel_residual": True})}, "beside the MLP"),
    ],
)
def test_refuses_what_it_has_no_count_for(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        block(replace(RUN, **changes))


def test_found_by_name() -> None:
    assert find_loss(find_trainer("torchtune").TRAITS.loss).SUMMARY
