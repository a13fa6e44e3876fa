"""litgpt's block, written down from its operations, against the closed formula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from qdeploy.core.errors import InputError
from qdeploy.models.shape import ModelShape
from qdeploy.plan.losses import LossRun, find_loss
from qdeploy.plan.saved import BlockRun, saved_bytes
from qdeploy.plan.trainers import find_trainer
from qdeploy.plan.trainers.litgpt import block, working_bytes

from .held import TOKENS, backward_bytes, block_bytes, dropout, peak_bytes

LLAMA = ModelShape(
    name="small", family="llama", layers=2, hidden_size=64, heads=4, kv_heads=4, head_dim=16,
    intermediate_size=176, vocab_size=96, max_positions=128,
)  # fmt: skip
GROUPED = LLAMA.model_copy(update={"kv_heads": 2})
NEOX = LLAMA.model_copy(
    update={
        "gated_mlp": False, "norm": "layer", "norm_bias": True, "parallel_residual": True,
        "fused_qkv": True, "qkv_bias": True, "output_bias": True, "mlp_bias": True,
    }
)  # fmt: skip
PHI = NEOX.model_copy(update={"norms_per_block": 1})
SHAPES = {"llama": LLAMA, "grouped": GROUPED, "neox": NEOX, "phi": PHI}
ADAPTER = frozenset({"gating_factor"})
ADAPTER_V2 = ADAPTER | {"adapter_scale", "input_layernorm", "post_attention_layernorm"}
RANK, PREFIX = 4, 10
ANGLES = torch.ones(512, 64)


class Norm(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        wide = x.float()
        scaled = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)
        return (scaled * self.weight.float()).to(x.dtype)


class FourBit(torch.autograd.Function):
    """A product with a dequantized weight that keeps its input for nothing."""

    @staticmethod
    def forward(context: Any, x: Any, weight: Any) -> Any:
        context.tensors = (x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        raise AssertionError("only the forward pass is counted")


class Linear(torch.nn.Module):
    """A linear with litgpt's forms of an adapter; `parts` of a fused one are adapted."""

    def __init__(self, run: BlockRun, inputs: int, outputs: int, parts: list[bool] | None) -> None:
        super().__init__()
        self.run, self.parts = run, parts
        self.weight = torch.nn.Parameter(torch.randn(outputs, inputs) / 8)
        self.weight.requires_grad_(run.trained is None)
        if parts and any(parts):
            self.a = torch.nn.Parameter(torch.randn(RANK * sum(parts), inputs))
            widths = self.sizes() if len(parts) == 3 else [outputs]
            rows = sum(size for size, on in zip(widths, parts, strict=True) if on)
            self.b = torch.nn.Parameter(torch.randn(rows, RANK))
        if run.trained and "adapter_scale" in run.trained:
            self.scale = torch.nn.Parameter(torch.ones(outputs))

    def forward(self, x: Any) -> Any:
        apply = FourBit.apply if self.run.quantized_base else functional.linear
        y = apply(x, self.weight)
        if hasattr(self, "scale"):
            return self.scale * y
        return y + self.added(x, y) if hasattr(self, "a") else y

    def added(self, x: Any, y: Any) -> Any:
        assert self.parts is not None
        inner = functional.linear(dropout(x, 0.05 * self.run.lora_dropout), self.a)
        if len(self.parts) == 1:
            return inner @ self.b.t()
        sizes = self.sizes()
        index = torch.cat(
            [
                p
                for p, on in zip(torch.arange(y.shape[-1]).split(sizes), self.parts, strict=True)
                if on
            ]
        )
        rows = self.b.split([size for size, on in zip(sizes, self.parts, strict=True) if on])
        out = torch.cat([i @ b.t() for i, b in zip(inner.split(RANK, -1), rows, strict=True)], -1)
        return out if all(self.parts) else torch.zeros_like(y).index_copy(-1, index, out)

    def sizes(self) -> list[int]:
        shape = self.run.shape
        return [n * shape.head_dim for n in (shape.heads, shape.kv_heads, shape.kv_heads)]


class Block(torch.nn.Module):
    def __init__(self, run: BlockRun, qkv: list[bool], others: bool) -> None:
        super().__init__()
        self.run, shape = run, run.shape
        hidden, width = shape.hidden_size, shape.intermediate_size
        make = Norm if shape.norm == "rms" else torch.nn.LayerNorm
        self.norms = torch.nn.ModuleList(make(hidden) for _ in range(shape.norms_per_block))
        trained = run.trained is None or "input_layernorm" in run.trained
        self.norms.requires_grad_(trained)
        heads = shape.heads + 2 * shape.kv_heads
        self.qkv = Linear(run, hidden, heads * shape.head_dim, qkv)
        self.proj = Linear(run, hidden, hidden, [others])
        count = 2 if shape.gated_mlp else 1
        self.up = torch.nn.ModuleList(Linear(run, hidden, width, [others]) for _ in range(count))
        self.down = Linear(run, width, hidden, [others])
        if run.trained and "gating_factor" in run.trained:
            self.prefix = torch.nn.Parameter(torch.randn(1, PREFIX, hidden))
            self.gate = torch.nn.Parameter(torch.zeros(1, 1, shape.heads, 1))

    def forward(self, x: Any) -> Any:
        first = self.norms[0](x)
        attended = self.attention(first)
        if not self.run.shape.parallel_residual:
            x = attended + x
            return self.mlp(self.norms[1](x)) + x
        return self.mlp(first if len(self.norms) == 1 else self.norms[1](x)) + attended + x

    def mlp(self, x: Any) -> Any:
        if len(self.up) == 1:
            return self.down(functional.gelu(self.up[0](x)))
        return self.down(functional.silu(self.up[0](x)) * self.up[1](x))

    def split(self, x: Any) -> list[Any]:
        return [
            part.view(*x.shape[:2], -1, self.run.shape.head_dim).transpose(1, 2)
            for part in self.qkv(x).split(self.qkv.sizes(), -1)
        ]

    def repeat(self, x: Any) -> Any:
        times = self.run.shape.heads // self.run.shape.kv_heads
        return x if times == 1 else x.repeat_interleave(times, 1)

    def attention(self, x: Any) -> Any:
        q, k, v = self.split(x)
        q, k = (torch.cat((rotated(h), h[..., :0]), -1) for h in (q, k))
        y = functional.scaled_dot_product_attention(
            q, self.repeat(k), self.repeat(v), is_causal=True
        ).transpose(1, 2)
        if hasattr(self, "gate"):
            _, keys, values = self.split(self.prefix)
            mask = torch.ones(x.shape[1], PREFIX, dtype=torch.bool)
            z = functional.scaled_dot_product_attention(
                q, self.repeat(keys), self.repeat(values), attn_mask=mask
            ).transpose(1, 2)
            y = y + self.gate * z
        return self.proj(y.reshape(x.shape))


def rotated(x: Any) -> Any:
    angles = ANGLES[: x.shape[-2], : x.shape[-1]]
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return (x * angles + turned * angles).to(x.dtype)


def run_of(shape: ModelShape, **settings: Any) -> BlockRun:
    run = BlockRun(
        shape=shape, moe=False, compute_bytes=2, residual_bytes=2, autocast=False,
        attention="sdpa", keys=TOKENS, padded=False, trained=None, adapted=frozenset(),
    )  # fmt: skip
    return replace(run, **settings)


def names(shape: ModelShape, *, others: bool = False) -> frozenset[str]:
    qkv, rest = [linear.name for linear in shape.attention_linears], shape.mlp_linears
    chosen = {qkv[0]} if shape.fused_qkv else {"q_proj", "v_proj"}
    return frozenset(chosen | ({qkv[-1], *(linear.name for linear in rest)} if others else set()))


def agrees(run: BlockRun, qkv: list[bool], *, others: bool = False, constant: float = 0) -> None:
    """`constant` bytes of the reference do not grow with tokens and are no part of the formula."""
    counted = block_bytes(
        lambda: Block(run, qkv, others), lambda made, x: made(x),
        hidden=run.shape.hidden_size, dtype=torch.bfloat16,
    )  # fmt: skip
    if run.shape.norm == "layer":  # statistics are FP32 on a GPU, BF16 on a CPU
        counted += 4 * run.shape.norms_per_block
    closed = saved_bytes(run, block(run), tensor=1, sequence=1)
    assert closed == pytest.approx(counted - constant / TOKENS, rel=0.012)


def norm_copies(shape: ModelShape) -> int:
    """FP32 copies of the norms' weights."""
    return 4 * shape.hidden_size * shape.norms_per_block if shape.norm == "rms" else 0


@pytest.mark.parametrize("name", SHAPES)
def test_full_training(name: str) -> None:
    shape = SHAPES[name]
    agrees(run_of(shape), [False] * 3, constant=norm_copies(shape))


@pytest.mark.parametrize("lora_dropout", [False, True])
@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_lora_on_queries_and_values(name: str, others: bool, lora_dropout: bool) -> None:
    shape = SHAPES[name]
    run = run_of(
        shape, trained=frozenset(), adapted=names(shape, others=others), lora_rank=RANK,
        lora_dropout=lora_dropout,
    )  # fmt: skip
    index = 8 * (shape.heads + shape.kv_heads) * shape.head_dim
    constant = norm_copies(shape) + index
    agrees(run, [True, False, True], others=others, constant=constant)


def test_lora_on_all_of_the_fused_linear_needs_no_index_copy() -> None:
    adapted = frozenset({"q_proj", "k_proj", "v_proj"})
    run = run_of(LLAMA, trained=frozenset(), adapted=adapted, lora_rank=RANK, lora_dropout=True)
    agrees(run, [True] * 3, constant=norm_copies(LLAMA))
    assert "qkv.lora_B.output" not in {saved.name for saved in block(run)}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("trained", [ADAPTER, ADAPTER_V2])
def test_llama_adapter(name: str, trained: frozenset[str]) -> None:
    shape = SHAPES[name]
    prefix = 2 * 2 * PREFIX * shape.heads * shape.head_dim  # keys and values of the prefix
    if shape.kv_heads == shape.heads:
        prefix = prefix * 3 // 2  # views that hold the prefix's queries too
    if trained == ADAPTER_V2:
        prefix += 2 * PREFIX * (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    agrees(run_of(shape, trained=trained), [False] * 3, constant=norm_copies(shape) + prefix)


@pytest.mark.parametrize("name", SHAPES)
def test_a_four_bit_linear_keeps_its_input(name: str) -> None:
    shape = SHAPES[name]
    run = run_of(
        shape, trained=frozenset(), adapted=names(shape), lora_rank=RANK, lora_dropout=True,
        quantized_base=True,
    )  # fmt: skip
    index = 8 * (shape.heads + shape.kv_heads) * shape.head_dim
    agrees(run, [True, False, True], constant=norm_copies(shape) + index)


def test_nothing_but_a_norm_of_heads_is_added_by_qk_norm() -> None:
    run = run_of(GROUPED, trained=frozenset(), adapted=names(GROUPED), lora_rank=RANK)
    per_head = replace(run, shape=GROUPED.model_copy(update={"qk_norm": True}))
    whole = replace(run, shape=GROUPED.model_copy(update={"qk_norm_whole": True}))
    plain, heads, all_heads = (
        saved_bytes(r, block(r), tensor=1, sequence=1) for r in (run, per_head, whole)
    )
    assert heads - plain == 4 * (64 + 32) + 4 * (4 + 2)
    assert all_heads - plain == 4 * (64 + 32) + 4 * 2


@pytest.mark.parametrize("name", SHAPES)
def test_backward_gradients(name: str) -> None:
    wide = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 704}
    run = run_of(SHAPES[name].model_copy(update=wide))
    counted = backward_bytes(lambda: Block(run, [False] * 3, False), hidden=256)
    assert working_bytes(run) == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moe": True}, "mixture of experts"),
        ({"attention": "eager"}, "scaled_dot_product_attention"),
        ({"compute_bytes": 4}, "pure 16-bit"),
        ({"recompute": "ops"}, "recomputation of ops"),
        ({"shape": LLAMA.model_copy(update={"alibi": True})}, "rotary"),
        ({"shape": LLAMA.model_copy(update={"attention_softcap": True})}, "soft-capped"),
    ],
)
def test_refuses_what_it_has_no_count_for(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        block(replace(run_of(LLAMA), **changes))


@pytest.mark.parametrize(("tokens", "sequences"), [(0, 1), (1, 1), (127, 1), (129, 1), (640, 4)])
def test_loss_bytes(tokens: int, sequences: int) -> None:
    run = LossRun(tokens, 101, 4, 2, head_trained=False, sequences=sequences)
    assert find_loss("lm_head_chunks").loss_bytes(run) == 8 * 101 * (
        tokens + min(tokens, 128 * sequences)
    )


def test_loss_holds_what_the_allocator_gives_out() -> None:
    tokens, vocabulary = 1024, 512
    hidden = torch.randn(1, tokens, 4, dtype=torch.bfloat16, requires_grad=True)
    head = torch.randn(vocabulary, 4, dtype=torch.bfloat16)
    labels = torch.zeros(tokens, dtype=torch.long)

    def step() -> None:
        logits = [functional.linear(x, head) for x in hidden.split(128, 1)]
        logits = [chunk.float() for chunk in logits]
        parts = [
            functional.cross_entropy(chunk[0], target, reduction="none")
            for chunk, target in zip(logits, labels.split(128), strict=True)
        ]
        torch.cat(parts).sum().backward()

    run = LossRun(tokens, vocabulary, 4, 2, head_trained=False)
    assert peak_bytes(step) == pytest.approx(
        find_loss(find_trainer("litgpt").TRAITS.loss).loss_bytes(run), rel=0.02
    )
