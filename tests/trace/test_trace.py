"""The trace of whole models, configs made from shapes, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qdeploy.core.errors import InputError
from qdeploy.models.family import shape_of
from qdeploy.models.shipped_shapes import shipped_shape
from qdeploy.plan.request import PlanRequest
from qdeploy.trace import trace_request, trace_table
from qdeploy.trace.activations import TraceRun, trace
from qdeploy.trace.config import config_of
from qdeploy.trace.live import LiveBytes

from .agreement import PURE
from .architectures import config


def test_parameters_are_those_of_the_shape() -> None:
    sizes = config("qwen3")
    assert trace(sizes, PURE).parameters == shape_of(sizes, "model").parameters


def test_every_block_is_counted_and_what_they_share_once() -> None:
    found = trace(config("llama", num_hidden_layers=4), PURE)
    assert len(found.blocks) == 4
    assert found.blocks[1:] == (found.blocks[1],) * 3
    # Cosine and sine of all positions count for the first block.
    assert found.blocks[0] - found.blocks[1] == 2 * 24 * 16 * 2
    assert found.bytes == sum(found.blocks) + found.outside_bytes


def test_dense_layers_before_experts() -> None:
    found = trace(config("deepseek_v2", first_k_dense_replace=1), PURE)
    dense, experts = found.blocks
    assert dense < experts


def test_a_softcap_keeps_logits() -> None:
    found = trace(config("gemma2"), replace(PURE, attention="eager"))
    assert found.logits_bytes == 2 * 24 * 96 * 2
    assert trace(config("llama"), PURE).logits_bytes == 0


@pytest.mark.parametrize(
    "name",
    ["llama-2-7b", "gpt2", "qwen3-8b", "gemma-2-9b", "mixtral-8x7b", "opt-13b", "deepseek-v3"],
)
def test_a_config_made_from_a_shape_gives_the_shape(name: str) -> None:
    shape = shipped_shape(name).shape
    assert shape_of(config_of(shape), shape.name) == shape


def test_a_shape_that_no_config_gives() -> None:
    shape = shipped_shape("llama-2-7b").shape.model_copy(update={"norms_per_block": 3})
    with pytest.raises(InputError, match="says of norms_per_block"):
        config_of(shape)


@pytest.mark.parametrize("kind", ["qwen", "no_such_model"])
def test_no_class_in_transformers(kind: str) -> None:
    with pytest.raises(InputError, match="no class for model type"):
        trace({**config("llama"), "model_type": kind}, PURE)


def test_code_from_the_hub_is_not_run() -> None:
    hub = {"auto_map": {"AutoModelForCausalLM": "modeling.Own"}, "model_type": "own"}
    with pytest.raises(InputError, match="code from the hub is not run"):
        trace({**config("llama"), **hub}, PURE)


def test_a_model_that_is_no_language_model() -> None:
    with pytest.raises(InputError, match="no language model"):
        trace({"model_type": "sam"}, PURE)


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"seq_len": 0}, {"seq_len": -1}])
def test_sizes_must_be_positive(sizes: dict[str, int]) -> None:
    with pytest.raises(InputError, match="must be at least 1"):
        TraceRun(**{"batch": 1, "seq_len": 1, **sizes})


def folder(tmp_path: Path, **config_json: object) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config_json))
    return path


def test_request_of_a_folder_agrees_with_the_formula(tmp_path: Path) -> None:
    model = folder(tmp_path, **{**config("llama"), "architectures": ["LlamaForCausalLM"]})
    found = trace_request(PlanRequest(model=model, gpu="A100-80GB", seq_len=32))
    assert found.formula_block_bytes == pytest.approx(found.last_block_bytes, rel=0.02)
    assert found.layers == 2
    assert sum(found.by_module.values()) == found.last_block_bytes
    assert trace_table(found).row_count == len(found.by_module) + 6


def test_an_architecture_without_a_family_is_traced_all_the_same(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_heads": 2, "num_layers": 2, "attention_types":
             [[["global", "local"], 1]], "vocab_size": 64}  # fmt: skip
    model = folder(tmp_path, architectures=["GPTNeoForCausalLM"], model_type="gpt_neo", **sizes)
    found = trace_request(PlanRequest(model=model, gpu="A100-80GB", seq_len=16, attention="eager"))
    assert found.formula_block_bytes is None
    assert found.last_block_bytes > 0
    with pytest.raises(InputError, match="adapters on an architecture"):
        trace_request(PlanRequest(model=model, gpu="A100-80GB", peft="lora"))


def test_other_trainers_are_refused() -> None:
    with pytest.raises(InputError, match="not those of torchtune"):
        trace_request(PlanRequest(model="llama-2-7b", gpu="A100-80GB", trainer="torchtune"))


def test_live_bytes_follow_storages_not_views() -> None:
    first = torch.empty(10, device="meta", requires_grad=True)
    with LiveBytes([first]) as live:
        double = first * 2
        view = double[:5]
        assert live.live() == 40
        del double
        assert live.live() == 40
        del view
        assert live.live() == 0
        kept = first.sin().cos()
        assert live.live() == 80  # the sine is kept for the gradient of the cosine
        kept.sum().backward()
    assert live.peak_since(0, ()) >= 120
