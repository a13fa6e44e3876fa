"""Fake quantization: the numbers of the export, straight-through gradients, nothing left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from qdeploy.calib.batches import CalibBatch, CalibrationSet
from qdeploy.core.affine import dequantize
from qdeploy.core.errors import InputError
from qdeploy.core.scheme import load_scheme
from qdeploy.formats import compressed_tensors as ct
from qdeploy.quant.engine import quantize
from qdeploy.train.qat import SCHEMES, finish, prepare
from qdeploy.train.recipe import Recipe

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
    "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
UP = "model.layers.1.mlp.up_proj"


def recipe(qat: str | None, precision: str = "bf16", **changes: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "model": "m", "data": {"path": "d"}, "hardware": {"gpu": "cpu"},
            "qat": qat, "precision": precision, **changes,
        }
    )  # fmt: skip


def llama(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(2)
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes}))


def qwen2() -> Qwen2ForCausalLM:
    torch.manual_seed(2)
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return model


def seen_weight(linear: nn.Linear) -> torch.Tensor:
    """The weight that the layer multiplies by: its derivative, where no input is clamped."""
    x = torch.full((linear.out_features, linear.in_features), -1.0, requires_grad=True)
    linear(x).backward(torch.eye(linear.out_features))
    linear.zero_grad()
    assert x.grad is not None
    return x.grad


def calibration() -> CalibrationSet:
    ids = torch.randint(3, 96, (2, 16), generator=torch.Generator().manual_seed(0))
    return CalibrationSet(
        batches=[CalibBatch(ids, torch.ones_like(ids))], samples=2, tokens=32, digest="0" * 64,
        files={}, seed=0, max_seq_len=16, truncated=0,
    )  # fmt: skip


STORED = {
    "bf16": torch.bfloat16,
    "bf16-pure": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}


@pytest.mark.parametrize(
    ("qat", "precision"),
    [("int8", "bf16"), ("int4", "bf16"), ("int4", "fp16"), ("int4", "fp32"), ("int8", "fp16")],
)
def test_weights_are_those_of_the_export_bit_for_bit(
    tmp_path: Path, qat: str, precision: str
) -> None:
    """FP32 weights in training; the folder has the recipe's type, as a trained folder has."""
    model = llama()
    prepare(model, recipe(qat, precision))
    seen = {
        name: seen_weight(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name != "lm_head"
    }
    finish(model, recipe(qat, precision))
    model.to(STORED[precision]).save_pretrained(tmp_path / "trained")
    quantize(tmp_path / "trained", calibration(), load_scheme(SCHEMES[qat]), tmp_path / "exported")
    written = load_file(tmp_path / "exported" / "model.safetensors")
    assert len(seen) == 14
    for name, weight in seen.items():
        assert torch.equal(weight, dequantize(ct.unpack(name, written), torch.float32)), name


def slow_fake(x: torch.Tensor, group: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` rounded by groups of the last dimension, and where it is not clamped."""
    rounded, inside = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
    flat, flat_rounded, flat_inside = (t.view(-1, group) for t in (x.contiguous(), rounded, inside))
    for row in range(len(flat)):
        scale = float(flat[row].abs().max()) / (steps / 2) or 1.0
        scale = float(torch.tensor(scale))
        for column in range(group):
            q = round(float(flat[row, column] / torch.tensor(scale)))
            low, high = -(steps + 1) // 2, (steps - 1) // 2
            flat_inside[row, column] = low <= q <= high
            flat_rounded[row, column] = torch.tensor(float(max(low, min(high, q)))) * scale
    return rounded, inside


def straight_through(x: torch.Tensor, group: int, steps: int) -> torch.Tensor:
    """By autograd's own means: the value is the rounded one, the derivative 1 inside, else 0."""
    rounded, inside = slow_fake(x.detach(), group, steps)
    passed = torch.where(inside, x, x.detach())
    return passed + (rounded - passed).detach()


@pytest.mark.parametrize("qat", ["int8", "int4"])
@pytest.mark.parametrize("shape", [(1, 64), (3, 64), (2, 3, 64)])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_values_and_gradients_are_the_slow_reference(
    qat: str, shape: tuple[int, ...], family: str
) -> None:
    model = llama() if family == "llama" else qwen2()
    linear = model.model.layers[0].self_attn.k_proj
    linear.weight.data[0] = 0.0
    prepare(model, recipe(qat, "fp32"))
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(shape, generator=generator).requires_grad_()
    upstream = torch.randn(*shape[:-1], 32, generator=generator)
    y = linear(x)
    y.backward(upstream)
    found = [x.grad, linear.weight.grad] + ([] if linear.bias is None else [linear.bias.grad])

    leaves = [x, linear.weight] + ([] if linear.bias is None else [linear.bias])
    copies = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    rounded_x = straight_through(copies[0], 64, 255) if qat == "int8" else copies[0]
    rounded_w = straight_through(copies[1], 64, 255 if qat == "int8" else 15)
    wanted = nn.functional.linear(rounded_x, rounded_w, *copies[2:])
    wanted.backward(upstream)
    assert torch.allclose(y, wanted, rtol=1e-5, atol=1e-5)
    for mine, reference in zip(found, copies, strict=True):
        assert mine is not None
        assert torch.allclose(mine, reference.grad, rtol=1e-5, atol=1e-5)
    # The largest positive weight of a row is the one that is clamped, now and then.
    assert 0 < int((linear.weight.grad[1:] == 0).sum()) < 32


@pytest.mark.parametrize("qat", ["int8", "int4"])
def test_autocast_multiplies_in_bf16_and_keeps_fp32_gradients(qat: str) -> None:
    model = qwen2()
    linear = model.model.layers[0].self_attn.q_proj
    plain = nn.Linear(64, 64)
    plain.bias = linear.bias
    prepare(model, recipe(qat))
    plain.weight.data = seen_weight(linear)
    x = -torch.rand(5, 64, generator=torch.Generator().manual_seed(4)) - 0.1
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = linear(x), plain(x)
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.float(), wanted.float(), atol=0.05)
    found.float().square().sum().backward()
    assert linear.weight.grad.dtype == linear.bias.grad.dtype == torch.float32


@pytest.mark.parametrize("qat", ["int8", "int4"])
def test_nothing_but_input_and_parameter_is_kept_for_the_backward_pass(qat: str) -> None:
    model = llama()
    prepare(model, recipe(qat))
    linear = model.model.layers[0].mlp.up_proj
    x = torch.randn(4, 64, requires_grad=True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.data_ptr()) or tensor, lambda tensor: tensor
    ):
        linear(x)
    assert kept == [x.data_ptr(), linear.weight.data_ptr()]


def test_frozen_weights_and_inputs_without_gradients() -> None:
    model = llama()
    prepare(model, recipe("int8"))
    linear = model.model.layers[0].mlp.up_proj
    linear.weight.requires_grad_(requires_grad=False)
    x = torch.randn(4, 64, requires_grad=True)
    linear(x).sum().backward()
    assert x.grad is not None
    assert linear.weight.grad is None
    other = model.model.layers[1].mlp.up_proj
    other(torch.randn(4, 64)).sum().backward()
    assert other.weight.grad is not None


@pytest.mark.parametrize("qat", ["int8", "int4"])
def test_parameters_stay_and_finish_takes_everything_away(qat: str) -> None:
    model, untouched = llama(), llama()
    ids = torch.randint(3, 96, (1, 9))
    exact = untouched(input_ids=ids).logits
    before = dict(model.named_parameters())
    prepare(model, recipe(qat))
    assert all(value is before[name] for name, value in model.named_parameters())
    assert model.state_dict().keys() == untouched.state_dict().keys()
    assert not torch.allclose(model(input_ids=ids).logits, exact, atol=1e-3)
    finish(model, recipe(qat))
    assert torch.equal(model(input_ids=ids).logits, exact)
    finish(model, recipe(qat))


def test_the_head_and_the_embedding_are_not_rounded() -> None:
    model, untouched = llama(), llama()
    prepare(model, recipe("int4"))
    hidden = torch.randn(3, 64)
    assert torch.equal(model.lm_head(hidden), untouched.lm_head(hidden))


def test_without_qat_nothing_happens() -> None:
    model = llama(hidden_size=48)
    prepare(model, recipe(None))
    assert not any("forward" in vars(module) for module in model.modules())
    finish(model, recipe(None))


def test_layers_that_the_group_size_does_not_divide_are_refused() -> None:
    model = llama(hidden_size=96, intermediate_size=128)
    with pytest.raises(InputError) as caught:
        prepare(model, recipe("int4"))
    assert caught.value.message == (
        "qat: int4: group size 64 does not divide the input features of "
        "model.layers.*.mlp.gate_proj (96), model.layers.*.mlp.up_proj (96), "
        "model.layers.*.self_attn.k_proj (96), model.layers.*.self_attn.o_proj (96), "
        "model.layers.*.self_attn.q_proj (96), model.layers.*.self_attn.v_proj (96); "
        "of 32, 64, 128, 32 would do"
    )
    assert not any("forward" in vars(module) for module in model.modules())
    prepare(model, recipe("int8"))


def test_models_that_cannot_be_exported_are_refused() -> None:
    with pytest.raises(InputError, match=r"h\.0\.attn\.c_attn is a Conv1D"):
        prepare(
            GPT2LMHeadModel(
                GPT2Config(n_embd=64, n_head=4, n_layer=1, bos_token_id=1, eos_token_id=1)
            ),
            recipe("int8"),
        )
    experts = MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=2))
    with pytest.raises(InputError, match="mixture of experts"):
        prepare(experts, recipe("int4"))


def test_adapters_are_refused() -> None:
    with pytest.raises(InputError, match="qat: int4 with lora: adapters are merged"):
        prepare(llama(), recipe("int4", peft={"kind": "lora"}))
