"""MPT's block, written down from its operations, against the closed formula."""

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
from qdeploy.plan.trainers.foundry import block, working_bytes

from .held import TOKENS, backward_bytes, block_bytes, dropout, peak_bytes

MPT = ModelShape(
    name="small", family="mpt", layers=2, hidden_size=64, heads=8, kv_heads=8, head_dim=8,
    intermediate_size=256, vocab_size=96, max_positions=1024, gated_mlp=False, fused_qkv=True,
    activation="gelu", qkv_bias=True, output_bias=True, mlp_bias=True, tied_embeddings=True,
    norm="layer", norm_bias=True, learned_positions=True,
)  # fmt: skip
WIDE = MPT.model_copy(update={"hidden_size": 256, "head_dim": 32, "intermediate_size": 1024})
RUN = BlockRun(
    shape=MPT, moe=False, compute_bytes=2, residual_bytes=2, autocast=False, attention="sdpa",
    keys=TOKENS, padded=False, trained=None, adapted=frozenset(),
)  # fmt: skip


class Unpad(torch.autograd.Function):
    """Gathers rows and keeps only which ones, as flash_attn.bert_padding's IndexFirstAxis."""

    @staticmethod
    def forward(context: Any, rows: Any) -> Any:
        indices = torch.arange(rows.shape[0])
        context.save_for_backward(indices)
        return rows[indices]

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        raise AssertionError("only the forward pass is counted")


class Block(torch.nn.Module):
    def __init__(self, attention: str, shape: ModelShape = MPT, chance: float = 0.0) -> None:
        super().__init__()
        hidden, width = shape.hidden_size, shape.intermediate_size
        self.shape, self.attention, self.chance = shape, attention, chance
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)
        self.qkv, self.out = torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
        self.up, self.down = torch.nn.Linear(hidden, width), torch.nn.Linear(width, hidden)

    def fused(self, q: Any, k: Any, v: Any) -> Any:
        heads, tokens = self.shape.heads, q.shape[-2]
        q, k, v = (z.view(1, tokens, heads, -1).transpose(1, 2) for z in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).reshape(1, tokens, -1)

    def unpadded(self, q: Any, k: Any, v: Any) -> Any:
        out = self.fused(*(Unpad.apply(z[0]) for z in (q, k, v)))[0]
        padded = torch.zeros(out.shape, dtype=out.dtype)
        return padded.index_put((torch.arange(out.shape[0]),), out)[None]

    def torch_impl(self, q: Any, k: Any, v: Any) -> Any:
        heads, tokens = self.shape.heads, q.shape[-2]
        q, k, v = (z.view(1, tokens, heads, -1).transpose(1, 2) for z in (q, k, v))
        scores = q @ k.transpose(2, 3) * 0.25
        mask = ~torch.ones(tokens, tokens).tril().bool()
        weights = scores.masked_fill(mask, -1e4).float().softmax(-1)  # autocast: FP32
        return (weights.to(v.dtype) @ v).transpose(1, 2).reshape(1, tokens, -1)

    def forward(self, x: Any) -> Any:
        hidden = x.shape[-1]
        kernels = {"sdpa": self.fused, "flash": self.unpadded, "eager": self.torch_impl}
        q, k, v = self.qkv(self.norm_1(x)).split([hidden] * 3, dim=2)
        out = self.out(kernels[self.attention](q, k, v))
        x = x + dropout(out, self.chance)
        return x + dropout(self.down(functional.gelu(self.up(self.norm_2(x)))), self.chance)


def closed(run: BlockRun) -> int:
    return saved_bytes(run, block(run), tensor=1, sequence=1)


@pytest.mark.parametrize("chance", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("attention", ["sdpa", "flash", "eager"])
def test_block(attention: Any, dtype: Any, chance: float) -> None:
    size = dtype.itemsize
    counted = block_bytes(
        lambda: Block(attention, chance=chance), lambda b, x: b(x), hidden=64, dtype=dtype
    )
    run = replace(
        RUN, attention=attention, compute_bytes=size, residual_bytes=size,
        shape=MPT.model_copy(update={"residual_dropout": chance}),
    )  # fmt: skip
    statistics = 2 * 2 * (4 - size)  # LayerNorm's are BF16 on a CPU, FP32 on a GPU
    scattered = 8 if attention == "flash" else 0  # one set of indices more in index_put
    assert closed(run) == counted + statistics - scattered


def test_gradients_in_a_blocks_backward_pass() -> None:
    run = replace(RUN, shape=WIDE)
    assert working_bytes(run) == backward_bytes(lambda: Block("sdpa", WIDE), hidden=256)
    assert working_bytes(replace(RUN, attention="eager", keys=1000)) == 4 * 8 * 1000 + 2 * 64


def test_key_value_heads_of_their_own() -> None:
    few = RUN.shape.model_copy(update={"kv_heads": 2})
    dense, flash = (
        closed(RUN) - closed(replace(RUN, shape=few)),
        closed(replace(RUN, attention="flash"))
        - closed(replace(RUN, attention="flash", shape=few)),
    )
    assert dense == 2 * 2 * (64 - 16)
    assert flash == 0, "the unpadded kernel repeats keys and values to all heads"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"adapted": frozenset({"Wqkv"})}, "adapters"),
        ({"recompute": "ops"}, "recompute ops"),
        ({"moe": True}, "mixture of experts"),
        ({"shape": MPT.model_copy(update={"norm": "rms"})}, "LayerNorm"),
        ({"shape": MPT.model_copy(update={"gated_mlp": True})}, "GELU without a gate"),
        ({"shape": MPT.model_copy(update={"learned_positions": False})}, "rotary"),
        ({"shape": MPT.model_copy(update={"attention_dropout": 0.1})}, "attention dropout"),
    ],
)
def test_what_mpt_has_not(change: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        block(replace(RUN, **change))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fused_loss(dtype: Any) -> None:
    """A kernel keeps the logits and writes a gradient beside them."""

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, logits: Any, labels: Any) -> Any:
            context.save_for_backward(logits, labels)
            return logits.flatten()[0].float()

        @staticmethod
        def backward(context: Any, *gradients: Any) -> Any:
            return torch.empty_like(context.saved_tensors[0]), None

    tokens, vocabulary = 64, 4096
    hidden = torch.randn(tokens, 4, dtype=dtype)
    head = torch.randn(vocabulary, 4, dtype=dtype, requires_grad=True)
    head.grad = torch.zeros_like(head)
    labels = torch.zeros(tokens, dtype=torch.long)
    run = LossRun(tokens, vocabulary, 4, dtype.itemsize, head_trained=True)
    peak = peak_bytes(lambda: Fused.apply(hidden @ head.t(), labels).backward())
    assert peak == pytest.approx(find_loss("fused").loss_bytes(run), rel=0.1)


def test_found_by_name() -> None:
    assert find_loss(find_trainer("foundry").TRAITS.loss).SUMMARY
