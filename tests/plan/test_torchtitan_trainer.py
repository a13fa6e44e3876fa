"""torchtitan's block, written down from its operations, against the closed formula."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from qdeploy.core.errors import InputError
from qdeploy.models.shape import ModelShape
from qdeploy.plan.losses import LossRun, find_loss
from qdeploy.plan.saved import BlockRun, saved_bytes
from qdeploy.plan.trainers import find_trainer
from qdeploy.plan.trainers.torchtitan import block, working_bytes

from .held import TOKENS, backward_bytes, block_bytes, peak_bytes, storages

LLAMA = ModelShape(
    name="small", family="llama", layers=2, hidden_size=64, heads=8, kv_heads=2, head_dim=8,
    intermediate_size=176, vocab_size=96, max_positions=128,
)  # fmt: skip
RUN = BlockRun(
    shape=LLAMA, moe=False, compute_bytes=2, residual_bytes=2, autocast=False, attention="flash",
    keys=TOKENS, padded=False, trained=None, adapted=frozenset(),
)  # fmt: skip
WIDE = LLAMA.model_copy(update={"hidden_size": 256, "head_dim": 32, "intermediate_size": 704})
ANGLES = {d: torch.polar(torch.ones(1024, d // 2), torch.ones(1024, d // 2)) for d in (8, 32)}


class Norm(torch.nn.Module):
    """RMSNorm in single operations, in FP32 up to the weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return scaled.type_as(x) * self.weight


def rotated(x: Any) -> Any:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turned = pairs * ANGLES[x.shape[-1]][: x.shape[1]].view(1, x.shape[1], 1, -1)
    return torch.view_as_real(turned).flatten(3).type_as(x)


class Block(torch.nn.Module):
    def __init__(self, shape: ModelShape = LLAMA) -> None:
        super().__init__()
        hidden, width, self.head_dim = shape.hidden_size, shape.intermediate_size, shape.head_dim
        q_features, k_features = 8 * self.head_dim, 2 * self.head_dim
        self.norm_1, self.norm_2 = Norm(hidden), Norm(hidden)
        sizes = {
            "wq": (hidden, q_features), "wk": (hidden, k_features), "wv": (hidden, k_features),
            "wo": (q_features, hidden), "w1": (hidden, width), "w2": (width, hidden),
            "w3": (hidden, width),
        }  # fmt: skip
        for name, (into, out) in sizes.items():
            setattr(self, name, torch.nn.Linear(into, out, bias=False))

    def forward(self, x: Any) -> Any:
        seen, width = x.shape[1], self.head_dim
        y = self.norm_1(x)
        q, k, v = (linear(y).view(1, seen, -1, width) for linear in (self.wq, self.wk, self.wv))
        q, k = rotated(q), rotated(k)
        k, v = (z.repeat_interleave(4, dim=2) for z in (k, v))
        out = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.wo(out.transpose(1, 2).contiguous().view(1, seen, -1))
        y = self.norm_2(x)
        return x + self.w2(functional.silu(self.w1(y)) * self.w3(y))


def selective() -> Any:
    """Save attention and every second matrix product, recompute the rest."""
    products: dict[bool, int] = defaultdict(int)

    def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        product = func == torch.ops.aten.mm.default
        products[context.is_recompute] += product
        attention = func == torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        saved = attention or (product and products[context.is_recompute] % 2)
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def closed(run: BlockRun) -> int:
    return saved_bytes(run, block(run), tensor=1, sequence=1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_block_as_written(dtype: Any) -> None:
    size = dtype.itemsize
    counted = block_bytes(Block, lambda b, x: b(x), hidden=64, dtype=dtype)
    # In BF16 the residual itself is not kept: the norms keep their FP32 copies of it.
    assert closed(replace(RUN, compute_bytes=size, residual_bytes=size)) == counted


def test_selective_op_checkpointing() -> None:
    def call(module: Any, x: Any) -> Any:
        return checkpoint(
            module, x, use_reentrant=False, preserve_rng_state=False, context_fn=selective
        )

    counted = block_bytes(Block, call, hidden=64, dtype=torch.bfloat16)
    assert closed(replace(RUN, recompute="ops")) == counted


@pytest.mark.parametrize("recompute", ["none", "ops"])
def test_compiled_block(recompute: Any) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    torch._dynamo.reset()
    module: Any = Block().bfloat16()
    own = storages([*ANGLES.values(), *module.parameters()])
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    if recompute == "ops":
        module = checkpoint_wrapper(module, preserve_rng_state=False, context_fn=selective)
    x = torch.randn(1, TOKENS, 64, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        torch.compile(module, backend="aot_eager_decomp_partition", fullgraph=True)(x)
    counted = sum(storage.nbytes() for storage in kept.values()) / TOKENS
    assert closed(replace(RUN, compiled=True, recompute=recompute)) == counted


def test_gradients_in_a_blocks_backward_pass() -> None:
    run = replace(RUN, shape=WIDE)
    assert working_bytes(run) == backward_bytes(lambda: Block(WIDE), hidden=256)


def test_tensor_parallel_linears_keep_their_gathered_input() -> None:
    one, eight = (saved_bytes(RUN, block(RUN), tensor=t, sequence=t) for t in (1, 8))
    gathered = 2 * 2 * 64
    assert eight == gathered + (one - gathered) // 8


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"adapted": frozenset({"q_proj"})}, "adapters"),
        ({"trained": frozenset()}, "adapters"),
        ({"recompute": "attention"}, "recompute attention"),
        ({"attention": "eager"}, "scaled_dot_product_attention"),
        ({"moe": True}, "mixture of experts"),
        ({"shape": LLAMA.model_copy(update={"norm": "layer"})}, "RMSNorm"),
        ({"shape": LLAMA.model_copy(update={"gated_mlp": False})}, "without a gate"),
        ({"shape": LLAMA.model_copy(update={"qk_norm": True})}, "norms of queries"),
    ],
)
def test_what_its_llama_has_not(change: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        block(replace(RUN, **change))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_upcast_loss(dtype: Any) -> None:
    tokens, vocabulary = 64, 4096
    hidden = torch.randn(tokens, 4, dtype=dtype)
    head = torch.randn(vocabulary, 4, dtype=dtype, requires_grad=True)
    head.grad = torch.zeros_like(head)
    labels = torch.randint(0, vocabulary, (tokens,))

    def step() -> None:
        logits = hidden @ head.t()
        loss = functional.cross_entropy(logits.float(), labels)
        del logits
        loss.backward()

    run = LossRun(tokens, vocabulary, 4, dtype.itemsize, head_trained=True)
    assert peak_bytes(step) == pytest.approx(find_loss("upcast").loss_bytes(run), rel=0.01)


@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_losses_are_proportional_to_tokens_and_vocabulary(tokens: int) -> None:
    run = LossRun(tokens, 101, 4, 2, head_trained=True)
    bytes_a_logit = {"upcast": 12, "loss_parallel": 16, "fused": 4, "vocab_parallel": 6}
    for name, size in bytes_a_logit.items():
        assert find_loss(name).loss_bytes(run) == size * tokens * 101
    wide = replace(run, compute_bytes=4)
    wide_bytes = {"upcast": 12, "loss_parallel": 16, "fused": 8, "vocab_parallel": 4}
    for name, size in wide_bytes.items():
        assert find_loss(name).loss_bytes(wide) == size * tokens * 101


def test_found_by_name() -> None:
    trainer = find_trainer("torchtitan")
    assert find_loss(trainer.TRAITS.loss).SUMMARY
