"""INT4 per group by the engine, read back by transformers and by qdeploy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from qdeploy.calib.batches import CalibrationSet
from qdeploy.core.affine import dequantize, quantize_per_group
from qdeploy.core.artifacts import read_json
from qdeploy.core.errors import InputError
from qdeploy.core.scheme import Scheme, load_scheme
from qdeploy.formats import compressed_tensors as ct
from qdeploy.quant import engine, estimate
from qdeploy.quant.engine import quantize
from qdeploy.runtime.load import load_candidate

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Path:
    """A LLaMA of two blocks whose input features 64 divides, with a tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = Path(shutil.copytree(tiny_llama, tmp_path_factory.mktemp("models") / "模型"))
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=400, hidden_size=64, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        tie_word_embeddings=True, initializer_range=0.2, bos_token_id=1, eos_token_id=2,
        pad_token_id=0, mlp_bias=True,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def scheme(group_size: int = 64, **changes: Any) -> Scheme:
    loaded = load_scheme("int4-rtn")
    weights = loaded.weights.model_copy(update={"group_size": group_size})
    return loaded.model_copy(update={"weights": weights, **changes})


@torch.no_grad()
def logits(model: Any, calib: CalibrationSet) -> torch.Tensor:
    rows = []
    for batch in calib.batches:
        out = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        rows.append(out[batch.attention_mask.bool()])
    return torch.cat(rows)


@pytest.mark.parametrize("group_size", [32, 64])
def test_transformers_and_qdeploy_read_what_was_written(
    source: Path, calib: CalibrationSet, tmp_path: Path, group_size: int
) -> None:
    out = tmp_path / "out"
    manifest = quantize(source, calib, scheme(group_size), out)
    stored, plain = load_file(out / WEIGHTS), load_file(source / WEIGHTS)
    reference = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    exact = logits(reference, calib)
    names = ct.linear_names(read_json(out / "config.json"), stored)
    assert len(names) == 14 == len(manifest.layers)
    for name in names:
        wanted = quantize_per_group(plain[f"{name}.weight"], group_size, torch.bfloat16, 4)
        found = ct.unpack(name, stored)
        assert torch.equal(found.q, wanted.q)
        assert torch.equal(found.scale, wanted.scale)
        reference.get_submodule(name).weight.data = dequantize(wanted, torch.float32)
    wanted_logits = logits(reference, calib)
    theirs = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    assert torch.allclose(logits(theirs, calib), wanted_logits, rtol=1e-4, atol=1e-4)
    candidate = load_candidate("int4", out, None)
    assert torch.equal(logits(candidate.model, calib), wanted_logits)
    assert candidate.format == "compressed-tensors/pack-quantized"
    assert candidate.runtime == "float32 arithmetic on INT4 weights"
    assert candidate.manifest_matches is True
    assert 0.01 < float((wanted_logits - exact).norm() / exact.norm()) < 0.5


def test_the_manifest_and_the_rest_of_the_tensors(
    source: Path, calib: CalibrationSet, tmp_path: Path
) -> None:
    manifest = quantize(source, calib, load_scheme("int4-rtn"), tmp_path / "out")
    stored, plain = load_file(tmp_path / "out" / WEIGHTS), load_file(source / WEIGHTS)
    assert {layer.scheme for layer in manifest.layers} == {"w4-group64-sym a16"}
    assert {layer.method for layer in manifest.layers} == {"rtn"}
    assert all(0 < layer.output_error < 0.05 for layer in manifest.layers)
    quantized = {f"{layer.name}.weight" for layer in manifest.layers}
    for name in plain.keys() - quantized:
        assert torch.equal(stored[name], plain[name]), name
    parts = {f"{name}_{part}" for name in quantized for part in ("packed", "scale", "shape")}
    assert stored.keys() == parts | (plain.keys() - quantized)
    job = engine.plan_job(source, load_scheme("int4-rtn"), tmp_path / "new", calib)
    assert estimate._weights_bytes(job) == manifest.coverage.output_bytes


def test_layers_that_the_group_size_does_not_divide(
    saved: Callable[..., Path], source: Path, calib: CalibrationSet, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        quantize(source, calib, scheme(128), tmp_path / "out")
    assert caught.value.message.startswith("group size 128 does not divide the input features of ")
    for name in ("self_attn.q_proj (64)", "mlp.up_proj (64)", "mlp.down_proj (192)"):
        assert f"model.layers.*.{name}" in caught.value.message
    assert caught.value.message.endswith("32 and 64 would do")
    with pytest.raises(InputError, match="none of the others does either"):
        quantize(saved("llama"), calib, scheme(), tmp_path / "out")


def test_smoothing_without_quantized_activations_is_refused(
    source: Path, calib: CalibrationSet, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="smoothquant needs quantized activations"):
        quantize(source, calib, scheme(algorithms=["smoothquant", "rtn"]), tmp_path / "out")


def test_a_precision_that_the_format_lacks_is_refused_before_anything_is_written(
    source: Path, calib: CalibrationSet, tmp_path: Path
) -> None:
    activations = load_scheme("int8").activations
    with pytest.raises(InputError, match="w4-group64-sym a8-token"):
        quantize(source, calib, scheme(activations=activations), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
