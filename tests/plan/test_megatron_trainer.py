"""Megatron's published equations and a block of the same operations against the closed formula."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch.nn import functional

from qdeploy.core.errors import InputError
from qdeploy.models.shape import ModelShape
from qdeploy.plan.losses import find_loss
from qdeploy.plan.saved import BlockRun, saved_bytes
from qdeploy.plan.trainers import find_trainer
from qdeploy.plan.trainers.megatron import block, working_bytes

from .held import TOKENS, block_bytes, dropout


def gpt(hidden: int, heads: int, layers: int = 1, **fields: Any) -> ModelShape:
    """The block of arXiv 2205.05198: 4h wide GELU MLP, LayerNorm, dropout everywhere."""
    values: dict[str, Any] = {
        "name": "gpt", "family": "gpt2", "layers": layers, "hidden_size": hidden, "heads": heads,
        "kv_heads": heads, "head_dim": hidden // heads, "intermediate_size": 4 * hidden,
        "vocab_size": 96, "max_positions": 2048, "gated_mlp": False, "activation": "gelu",
        "norm": "layer", "norm_bias": True, "learned_positions": True, "residual_dropout": 0.1,
        "attention_dropout": 0.1,
    }  # fmt: skip
    return ModelShape(**{**values, **fields})


def run_of(shape: ModelShape, keys: int, **fields: Any) -> BlockRun:
    values: dict[str, Any] = {
        "shape": shape, "moe": False, "compute_bytes": 2, "residual_bytes": 2, "autocast": False,
        "attention": "eager", "keys": keys, "padded": False, "trained": None,
        "adapted": frozenset(),
    }  # fmt: skip
    return BlockRun(**{**values, **fields})


def closed(run: BlockRun, tensor: int = 1, sequence: int = 1) -> int:
    return saved_bytes(run, block(run), tensor=tensor, sequence=sequence)


SIZES = [(12288, 96, 2048), (6144, 64, 2048), (20480, 128, 2048), (64, 8, 1), (64, 8, 4096)]


@pytest.mark.parametrize(("h", "a", "s"), SIZES)
def test_equations_of_the_paper(h: int, a: int, s: int) -> None:
    run = run_of(gpt(h, a), s)
    assert closed(run) == h * (34 + Fraction(5 * a * s, h))  # equation 1
    for t in (2, 8):
        tensor = h * (10 + Fraction(24, t) + Fraction(5 * a * s, h * t))  # equation 2
        assert closed(run, tensor=t) == tensor
        both = Fraction(h, t) * (34 + Fraction(5 * a * s, h))  # equation 4
        assert closed(run, tensor=t, sequence=t) == both
        selective = replace(run, recompute="attention")
        assert closed(selective, tensor=t, sequence=t) == Fraction(34 * h, t)  # equation 6


def test_published_total_without_recomputation() -> None:
    layers, h, a, s = 80, 8192, 64, 2048
    total = layers * s * closed(run_of(gpt(h, a), s))
    assert total == 114 * layers * s * h == 153_008_209_920


def test_widths_other_than_four_times_hidden() -> None:
    # compute_activation_memory of theoretical_memory_usage.py: sbh(18 + 4F/h)
    h, width = 1024, 3000
    shape = gpt(h, 16, intermediate_size=width)
    assert closed(run_of(shape, 512, recompute="attention")) == 18 * h + 4 * width


class Swiglu(torch.autograd.Function):
    """Keeps its input and computes the rest again, as Megatron's fused kernel."""

    @staticmethod
    def forward(context: Any, joint: Any) -> Any:
        context.save_for_backward(joint)
        gate, up = joint.chunk(2, dim=-1)
        return functional.silu(gate) * up

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        raise AssertionError("only the forward pass is counted")


class Block(torch.nn.Module):
    """The operations that the paper lists, one after the other."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        hidden, width, self.shape = shape.hidden_size, shape.intermediate_size, shape
        self.kv_features = shape.kv_heads * shape.head_dim
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)
        self.qkv = torch.nn.Linear(hidden, hidden + 2 * self.kv_features)
        self.proj = torch.nn.Linear(hidden, hidden)
        self.fc1 = torch.nn.Linear(hidden, width * (2 if shape.gated_mlp else 1))
        self.fc2 = torch.nn.Linear(width, hidden)
        self.register_buffer("mask", torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1))

    def heads(self, x: Any) -> Any:
        shape = self.shape
        x = x.view(TOKENS, -1, shape.head_dim).transpose(0, 1)
        return x.repeat_interleave(shape.heads // x.shape[0], dim=0).contiguous()

    def forward(self, x: Any) -> Any:
        shape = self.shape
        sizes = [shape.hidden_size, self.kv_features, self.kv_features]
        q, k, v = map(self.heads, self.qkv(self.norm_1(x))[0].split(sizes, dim=-1))
        scores = (q @ k.transpose(1, 2) / 2.0).masked_fill(self.mask, -1e4)
        dropped = dropout(scores.softmax(-1), shape.attention_dropout)
        context = (dropped @ v).transpose(0, 1).reshape(x.shape)
        x = x + dropout(self.proj(context), shape.residual_dropout)
        y = self.fc1(self.norm_2(x))
        y = self.fc2(Swiglu.apply(y) if shape.gated_mlp else functional.gelu(y))
        return x + dropout(y, shape.residual_dropout)


@pytest.mark.parametrize("chance", [0.0, 0.1])
@pytest.mark.parametrize(("gated", "kv_heads"), [(False, 8), (True, 8), (True, 2), (False, 1)])
def test_block_of_the_same_operations(gated: bool, kv_heads: int, chance: float) -> None:
    shape = gpt(
        64, 8, gated_mlp=gated, kv_heads=kv_heads, residual_dropout=chance,
        attention_dropout=chance, activation="silu" if gated else "gelu",
    )  # fmt: skip
    counted = block_bytes(
        lambda: Block(shape), lambda module, x: module(x), hidden=64, dtype=torch.bfloat16
    )
    statistics = 2 * 2 * 2  # of LayerNorm, BF16 on a CPU; left out as in the paper
    assert closed(run_of(shape, TOKENS)) == counted - statistics


def test_flash_kernel_keeps_few_heads_and_a_log_sum() -> None:
    shape = gpt(64, 8, kv_heads=2, residual_dropout=0.0, attention_dropout=0.0)
    run = run_of(shape, 10**6, attention="flash")
    q, k, out, inputs, mlp = 64, 16, 64, 4 * 64, 2 * 256
    assert closed(run) == 2 * (q + 2 * k + out + inputs + mlp) + 4 * 8
    recomputed = replace(run, recompute="attention")
    assert closed(run) - closed(recomputed) == 4 * 8


def test_norms_of_queries_and_keys_keep_their_input() -> None:
    plain, normed = (
        closed(run_of(gpt(64, 8, kv_heads=2, qk_norm=on), 7, attention="flash"))
        for on in (False, True)
    )
    assert normed - plain == 2 * (64 + 16)


@pytest.mark.parametrize("shared", [0, 40])
@pytest.mark.parametrize("top", [1, 3])
def test_experts(top: int, shared: int) -> None:
    h, experts, width = 64, 5, 24
    shape = gpt(
        h, 8, gated_mlp=True, activation="silu", residual_dropout=0.0, attention_dropout=0.0,
        experts=experts, experts_per_token=top, expert_intermediate_size=width,
        shared_expert_intermediate_size=shared, shared_expert_gate=bool(shared),
    )  # fmt: skip
    run = run_of(shape, 16, attention="flash")
    dense = closed(run) - 2 * 3 * 4 * h  # without the MLP's inside
    router = experts * (4 + 1)
    routed = top * (2 * h + 4 + 2 * 2 * width + 2 * width)
    gated = 2 * (3 * shared + h) if shared else 0
    assert closed(replace(run, moe=True)) == dense + router + routed + gated


def test_gradients_of_the_attention_matrix_count_when_they_are_wider() -> None:
    shape = gpt(64, 8)
    assert working_bytes(run_of(shape, 1)) == 2 * 256 + 2 * 64
    assert working_bytes(run_of(shape, 1000)) == 2 * 8 * 1000 + 2 * 64
    assert working_bytes(run_of(shape, 1000, attention="flash")) == 2 * 256 + 2 * 64
    gated = gpt(64, 8, gated_mlp=True, activation="silu")
    assert working_bytes(run_of(gated, 1, attention="flash")) == 2 * 2 * 256 + 2 * 64


@pytest.mark.parametrize(
    ("shape", "change", "word"),
    [
        ({}, {"adapted": frozenset({"c_attn"})}, "adapters"),
        ({}, {"recompute": "ops"}, "recompute ops"),
        ({"parallel_residual": True}, {}, "beside the MLP"),
        ({"norms_per_block": 4}, {}, "4 norms"),
        ({"kv_lora_rank": 16}, {}, "latent attention"),
        ({"alibi": True}, {}, "ALiBi"),
    ],
)
def test_what_megatron_has_no_block_for(
    shape: dict[str, Any], change: dict[str, Any], word: str
) -> None:
    with pytest.raises(InputError, match=word):
        block(run_of(gpt(64, 8, **shape), 16, **change))


def test_found_by_name() -> None:
    assert find_loss(find_trainer("megatron").TRAITS.loss).SUMMARY
