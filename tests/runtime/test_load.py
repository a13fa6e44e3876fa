"""Loading: the weights that run are those in the folder, or there is an error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from qdeploy.core.affine import dequantize, quantize_per_channel
from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.core.precision import ActivationPrecision, WeightPrecision
from qdeploy.formats import compressed_tensors
from qdeploy.models.checkpoint import open_checkpoint
from qdeploy.runtime.int8_linear import Int8Linear
from qdeploy.runtime.load import load_candidate

IDS = [5, 9, 33, 70, 12, 6]
WEIGHTS = "model.safetensors"


@pytest.fixture
def plain(tiny_llama, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_llama, tmp_path / "plain"))


def edit_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, change) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


@pytest.fixture
def int8(plain, tmp_path) -> Path:
    """The plain folder in W8A8, o_proj of block 0 left alone."""
    folder = Path(shutil.copytree(plain, tmp_path / "int8"))
    ignored = "model.layers.0.self_attn.o_proj"

    def quantize(tensors):
        for name in [n for n in tensors if n.endswith("_proj.weight") and ignored not in n]:
            layer = name.removesuffix(".weight")
            qt = quantize_per_channel(tensors.pop(name), torch.bfloat16)
            tensors.update(compressed_tensors.pack(layer, qt))

    edit_weights(folder, quantize)
    weights = WeightPrecision(bits=8, granularity="channel", symmetric=True)
    tokens = ActivationPrecision(bits=8, granularity="token", symmetric=True, dynamic=True)
    quantization = compressed_tensors.quantization_config(weights, tokens, ["lm_head", ignored])
    edit_config(folder, quantization_config=quantization)
    return folder


def test_plain_folder(plain):
    candidate = load_candidate("base", plain, "bf16")
    reference = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    logits_TV = reference(input_ids=torch.tensor([IDS])).logits[0]
    assert torch.equal(candidate.log_probs(IDS), logits_TV.log_softmax(-1))
    checkpoint = open_checkpoint(plain)
    assert candidate.name == "base"
    assert candidate.source == str(plain)
    assert candidate.format == "bf16"
    assert candidate.runtime == "float32 arithmetic on BF16 weights"
    assert candidate.weights_digest == checkpoint.digest
    assert candidate.weights_bytes == checkpoint.size_bytes
    assert candidate.manifest_matches is None
    assert candidate.max_positions == 2048
    assert 2 in candidate.end_ids


def test_stored_precision_is_the_default(plain):
    assert load_candidate("a", plain, None).format == "bf16"

    def widen(tensors):
        tensors.update({name: tensor.float() for name, tensor in tensors.items()})

    edit_weights(plain, widen)
    assert load_candidate("a", plain, None).format == "fp32"


def test_rounding_changes_the_digest_only_where_it_changes_weights(plain):
    def perturb(tensors):
        tensors.update({name: tensor.float() * 1.001 for name, tensor in tensors.items()})

    edit_weights(plain, perturb)
    digest = open_checkpoint(plain).digest
    full, half = load_candidate("a", plain, "fp32"), load_candidate("b", plain, "bf16")
    assert full.weights_digest == digest != half.weights_digest
    assert half.weights_bytes * 2 == full.weights_bytes
    stored = load_file(plain / WEIGHTS)["model.layers.0.mlp.up_proj.weight"]
    ran = half.model.model.layers[0].mlp.up_proj.weight
    assert ran.dtype == torch.float32
    assert torch.equal(ran, stored.bfloat16().float())
    fp16 = load_candidate("c", plain, "fp16").model.model.layers[0].mlp.up_proj.weight
    assert torch.equal(fp16, stored.half().float())


def test_weights_that_fp16_cannot_hold(plain):
    edit_weights(plain, lambda t: t["model.norm.weight"].fill_(1e6))
    with pytest.raises(InputError, match=r"model\.norm\.weight has values"):
        load_candidate("a", plain, "fp16")


def test_int8_folder(int8):
    candidate = load_candidate("int8", int8, None)
    layers = {n: m for n, m in candidate.model.named_modules() if isinstance(m, Int8Linear)}
    assert len(layers) == 13
    assert candidate.format == "compressed-tensors/int-quantized"
    assert candidate.runtime.startswith("int8 x int8 -> int32, ")
    assert candidate.weights_digest == open_checkpoint(int8).digest
    assert candidate.weights_bytes == open_checkpoint(int8).size_bytes
    stored = load_file(int8 / WEIGHTS)
    for name, layer in layers.items():
        assert torch.equal(layer.weight, stored[f"{name}.weight"])
        assert torch.equal(layer.scale, stored[f"{name}.weight_scale"].float().flatten())
    left = candidate.model.get_submodule("model.layers.0.self_attn.o_proj").weight
    assert torch.equal(left, stored["model.layers.0.self_attn.o_proj.weight"].float())
    assert candidate.model.lm_head.weight is candidate.model.model.embed_tokens.weight


def test_int8_equals_fake_quantization(int8, plain):
    """Against a plain model whose linears round weights and activations and multiply in float64."""
    candidate = load_candidate("int8", int8, None)
    stored = load_file(int8 / WEIGHTS)
    reference = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float64)

    def rounded(module, args):
        scale = args[0].float().abs().amax(-1, keepdim=True) / 127.5
        return ((args[0].float() / scale).round().clamp(-128, 127) * scale).double()

    for name in compressed_tensors.linear_names(
        json.loads((int8 / "config.json").read_text()), stored
    ):
        linear = reference.get_submodule(name)
        weight = compressed_tensors.unpack(name, stored)
        linear.weight.data = dequantize(weight, torch.float64)
        linear.register_forward_pre_hook(rounded)
    with torch.no_grad():
        expected = reference(input_ids=torch.tensor([IDS])).logits[0].log_softmax(-1)
    assert torch.allclose(candidate.log_probs(IDS).double(), expected, atol=1e-3)


def test_int8_without_resident_copies_gives_the_same(int8, monkeypatch):
    resident = load_candidate("a", int8, None).log_probs(IDS)
    monkeypatch.setattr("qdeploy.runtime.load._RESIDENT_SHARE", 0.0)
    assert torch.equal(load_candidate("a", int8, None).log_probs(IDS), resident)


@pytest.mark.parametrize("matches", [True, False])
def test_manifest(int8, matches):
    digest = open_checkpoint(int8).digest if matches else "0" * 64
    (int8 / "quant_manifest.json").write_text(json.dumps({"output_digest": digest}))
    assert load_candidate("a", int8, None).manifest_matches is matches


def test_changed_weights_change_the_digest(plain):
    before = load_candidate("a", plain, None).weights_digest
    assert load_candidate("a", plain, None).weights_digest == before
    edit_weights(plain, lambda t: t["model.norm.weight"].fill_(2.0))
    assert load_candidate("a", plain, None).weights_digest != before


def test_end_ids_come_from_all_three_files(plain):
    (plain / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 50]}))
    edit_config(plain, eos_token_id=60)
    candidate = load_candidate("a", plain, None)
    assert candidate.end_ids == {1, 50, 60, candidate.tokenizer.eos_token_id}


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(UP), rf"1 tensors missing, first '{UP}'"),
        (lambda t: t.update({UP: torch.ones(3, 3)}), "of another shape"),
        (lambda t: t.update({UP: t[UP].to(torch.float8_e4m3fn)}), "F8_E4M3"),
    ],
)
def test_incomplete_folders_are_refused(plain, change, message):
    edit_weights(plain, change)
    with pytest.raises(InputError, match=message):
        load_candidate("a", plain, None)


def test_tensors_that_the_model_does_not_use_are_named(plain, capsys):
    edit_weights(plain, lambda t: t.update({"model.extra": torch.ones(3)}))
    load_candidate("a", plain, None)
    assert "1 tensors are not used by the model, first 'model.extra'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(UP), "has no tensor"),
        (lambda t: t.pop("model.norm.weight"), "1 tensors missing"),
        (lambda t: t.update({f"{UP}_scale": torch.ones(3, 1)}), "expected an int8 matrix"),
    ],
)
def test_incomplete_int8_folders_are_refused(int8, change, message):
    edit_weights(int8, change)
    with pytest.raises(InputError, match=message):
        load_candidate("a", int8, None)


def test_other_formats_are_named(plain):
    edit_config(plain, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(InputError, match="quantized as gptq"):
        load_candidate("a", plain, None)


def test_precision_of_a_quantized_folder(int8):
    with pytest.raises(InputError, match="already quantized, it has no bf16 form"):
        load_candidate("a", int8, "bf16")


def test_unknown_precision_and_architecture(plain):
    with pytest.raises(UnknownNameError):
        load_candidate("a", plain, "bf15")
    edit_config(plain, model_type="never-heard-of")
    with pytest.raises(InputError, match="no causal language model"):
        load_candidate("a", plain, None)


def test_missing_tokenizer(plain):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (plain / name).unlink()
    with pytest.raises(InputError, match="no tokenizer"):
        load_candidate("a", plain, None)
