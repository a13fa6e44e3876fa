"""The block screen finds the damaged block, and only that one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from qdeploy.core.errors import InputError, RunError
from qdeploy.runtime.blocks import block_errors, decoder_blocks

IDS = torch.randint(3, 200, (2, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2"])
def test_equal_models_have_no_error(random_model, family):
    model = random_model(family).model
    errors = block_errors(model, copy.deepcopy(model), IDS)
    assert errors.blocks == [0.0, 0.0]
    assert set(errors.layers.values()) == {0.0}


@pytest.mark.parametrize(
    ("family", "linear"), [("llama", "mlp.down_proj"), ("gemma3_text", "mlp.gate_proj"),
                           ("gpt2", "mlp.c_proj")],
)  # fmt: skip
@pytest.mark.parametrize("block", [0, 1])
def test_a_scaled_linear_stands_out_in_its_block(random_model, family, linear, block):
    model = random_model(family).model
    damaged = copy.deepcopy(model)
    decoder_blocks(damaged)[block].get_submodule(linear).weight.data *= 1.5
    errors = block_errors(model, damaged, IDS).blocks
    assert errors[block] > 1e-4
    assert errors[1 - block] == 0.0


def test_against_the_definition(random_model):
    model, other = random_model("llama").model, random_model("llama", seed=1).model
    errors = block_errors(model, other, IDS).blocks
    hidden = model(input_ids=IDS, output_hidden_states=True).hidden_states
    entered = {"position_embeddings": model.model.rotary_emb(hidden[0], torch.arange(12)[None])}
    out_b = model.model.layers[0](hidden[0], **entered)
    out_c = other.model.layers[0](hidden[0], **entered)
    update = out_b - hidden[0]
    expected = float(((out_c - out_b) ** 2).sum() / (update**2).sum())
    assert errors[0] == pytest.approx(expected, rel=1e-4)


LINEARS = [f"self_attn.{n}_proj" for n in "qkvo"] + [
    f"mlp.{n}_proj" for n in ("gate", "up", "down")
]


@pytest.mark.parametrize("linear", LINEARS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3_text"])
def test_any_scaled_linear_stands_out_as_a_layer(random_model, family, linear):
    model = random_model(family).model
    damaged = copy.deepcopy(model)
    decoder_blocks(damaged)[1].get_submodule(linear).weight.data *= 1.5
    behind = {"self_attn.v_proj": "self_attn.o_proj", "mlp.up_proj": "mlp.down_proj"}
    layers = block_errors(model, damaged, IDS).layers
    assert layers.pop(f"1.{behind.get(linear, linear)}") == pytest.approx(0.25, rel=1e-3)
    assert all(error < 0.3 for error in layers.values())
    assert all(error == 0 for name, error in layers.items() if name.startswith("0."))


def test_hooks_are_removed(random_model):
    model = random_model("llama").model
    block_errors(model, model, IDS)
    assert all(not module._forward_hooks for module in model.modules())


def test_unknown_family_takes_the_longest_list(random_model, monkeypatch):
    model = random_model("llama").model
    blocks = decoder_blocks(model)
    monkeypatch.setattr(type(model.config), "model_type", "never-heard-of")
    assert decoder_blocks(model) is blocks
    model.model.layers = nn.ModuleList()
    with pytest.raises(InputError, match="no list of equal decoder blocks"):
        decoder_blocks(model)


def test_other_depth_is_refused(random_model):
    model = random_model("llama").model
    other = copy.deepcopy(model)
    other.model.layers.append(copy.deepcopy(other.model.layers[0]))
    with pytest.raises(InputError, match="has 2 decoder blocks, candidate has 3"):
        block_errors(model, other, IDS)


def test_nan_names_the_block(random_model):
    model = random_model("llama").model
    other = copy.deepcopy(model)
    other.model.layers[1].mlp.down_proj.weight.data[0, 0] = float("nan")
    with pytest.raises(RunError, match="block 1"):
        block_errors(model, other, IDS)
