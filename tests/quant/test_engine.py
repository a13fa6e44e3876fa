"""The whole engine on small random models, read back by transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from qdeploy.calib.batches import CalibrationSet
from qdeploy.core.affine import dequantize, round_trip_per_token
from qdeploy.core.artifacts import read_artifact, read_json
from qdeploy.core.errors import InputError, ResourceError, RunError
from qdeploy.core.scheme import Scheme, load_scheme
from qdeploy.formats import compressed_tensors as ct
from qdeploy.models.checkpoint import open_checkpoint
from qdeploy.quant import engine, estimate, output
from qdeploy.quant.engine import quantize
from qdeploy.quant.manifest import MANIFEST_NAME, QuantManifest

FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gemma3_text"]


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in open_checkpoint(folder).files:
        found.update(load_file(folder / file))
    return found


@torch.no_grad()
def logits(model: Any, calib: CalibrationSet) -> torch.Tensor:
    """Of all real tokens, one row each."""
    rows = []
    for batch in calib.batches:
        out = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        rows.append(out[batch.attention_mask.bool()])
    return torch.cat(rows)


def simulated(source: Path, folder: Path) -> Any:
    """The source model with the folder's weights dequantized and its inputs rounded."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    tensors = tensors_of(folder)
    names = ct.linear_names(read_json(folder / "config.json"), tensors)
    for name in names:
        linear = model.get_submodule(name)
        linear.weight.data = dequantize(ct.unpack(name, tensors), torch.float32)
        linear.register_forward_pre_hook(lambda _, args: (round_trip_per_token(args[0]),))
    for name, parameter in model.named_parameters():
        if name in tensors and name.removesuffix(".weight") not in names:
            parameter.data = tensors[name].float()
    return model


@pytest.mark.parametrize(
    ("family", "scheme"), [*((family, "int8") for family in FAMILIES), ("llama", "int8-rtn")]
)
def test_transformers_reads_the_same_function(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path, family: str, scheme: str
) -> None:
    source, out = saved(family), tmp_path / "out"
    manifest = quantize(source, calib, load_scheme(scheme), out)
    loaded = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    theirs, ours = logits(loaded, calib), logits(simulated(source, out), calib)
    exact = logits(AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32), calib)
    # Rounding to integers may fall on either side of a half, so single steps may differ.
    assert float((theirs - ours).norm() / ours.norm()) < 2e-2
    assert 0 < float((ours - exact).norm() / exact.norm()) < 0.5
    assert len(manifest.layers) == 14
    assert all(0 < layer.output_error < 0.05 for layer in manifest.layers)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_smoothing_gains_where_a_channel_is_an_outlier(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path, family: str
) -> None:
    exact = logits(AutoModelForCausalLM.from_pretrained(saved(family), dtype=torch.float32), calib)

    def error(scheme: str) -> float:
        quantize(saved(family), calib, load_scheme(scheme), tmp_path / scheme)
        return float((logits(simulated(saved(family), tmp_path / scheme), calib) - exact).norm())

    assert error("int8") < error("int8-rtn")


def test_what_is_written(saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path) -> None:
    source, out = tmp_path / "模型", tmp_path / "结果" / "int8"
    shutil.copytree(saved("llama"), source)
    (source / "chat_template.jinja").write_text("{{ 你好 }}", encoding="utf-8")
    (source / "tokenizer.json").write_text("{}")
    stored = load_file(source / "model.safetensors")
    stored["model.mtp.extra"] = torch.arange(3)
    stored["model.layers.1.extra"] = torch.ones(2)
    save_file(stored, source / "model.safetensors")

    manifest = quantize(source, calib, load_scheme("int8-rtn"), out)

    assert {p.name for p in out.iterdir()} == {
        "config.json", "generation_config.json", "chat_template.jinja", "tokenizer.json",
        "model.safetensors", MANIFEST_NAME,
    }  # fmt: skip
    assert (out / "chat_template.jinja").read_text(encoding="utf-8") == "{{ 你好 }}"
    written = tensors_of(out)
    assert "lm_head.weight" not in written
    linears = {layer.name for layer in manifest.layers}
    for name, tensor in stored.items():
        if name.removesuffix(".weight") in linears:
            assert written[name].dtype == torch.int8
            assert written[f"{name}_scale"].dtype == torch.bfloat16
        else:
            assert torch.equal(written[name], tensor), name
    assert len(written) == len(stored) + len(linears)
    assert read_artifact(out / MANIFEST_NAME, QuantManifest) == manifest
    assert manifest.source_digest == open_checkpoint(source).digest
    assert manifest.output_digest == open_checkpoint(out).digest
    assert manifest.verify.tensors == len(written)
    quantized = sum(stored[f"{name}.weight"].numel() for name in linears)
    assert manifest.coverage.quantized_parameters == quantized
    assert manifest.coverage.total_parameters == sum(t.numel() for t in stored.values())
    assert [layer.name for layer in manifest.skipped] == ["lm_head"]
    # A server that runs as another user can read the folder.
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in out.iterdir())


def test_shards_when_large(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    quantize(saved("mistral"), calib, load_scheme("int8-rtn"), tmp_path / "one")
    monkeypatch.setattr(output, "JOIN_BYTES", 100)
    manifest = quantize(saved("mistral"), calib, load_scheme("int8-rtn"), tmp_path / "many")
    one, many = tensors_of(tmp_path / "one"), tensors_of(tmp_path / "many")
    assert len(open_checkpoint(tmp_path / "many").files) == 3
    assert one.keys() == many.keys()
    assert all(torch.equal(one[name], many[name]) for name in one)
    assert "shares" not in manifest.skipped[0].reason
    AutoModelForCausalLM.from_pretrained(tmp_path / "many")


def test_the_same_input_gives_the_same_bytes(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path
) -> None:
    first = quantize(saved("llama"), calib, load_scheme("int8"), tmp_path / "a")
    second = quantize(saved("llama"), calib, load_scheme("int8"), tmp_path / "b")
    assert first.output_digest == second.output_digest


def test_blocks_see_what_quantized_blocks_give(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """After the last block the stream holds what the quantized folder computes."""
    kept: list[Any] = []
    start = engine._start_stream
    monkeypatch.setattr(engine, "_start_stream", lambda *args: kept.append(start(*args)) or kept[0])
    quantize(saved("gemma3_text"), calib, load_scheme("int8"), tmp_path / "out")
    model = simulated(saved("gemma3_text"), tmp_path / "out")
    seen: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    logits(model, calib)
    for batch, wanted in zip(kept[0].batches, seen, strict=True):
        found = batch.hidden.reshape(-1, 48)
        assert torch.allclose(
            found[batch.real], wanted.reshape(-1, 48)[batch.real], rtol=1e-3, atol=1e-2
        )
        assert not found[~batch.real].any()


def test_ignored_layers_stay(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path
) -> None:
    ignore = ("lm_head", "model.layers.1.mlp.down_proj")
    scheme = load_scheme("int8").model_copy(update={"ignore": ignore})
    manifest = quantize(saved("llama"), calib, scheme, tmp_path / "out")
    written, stored = tensors_of(tmp_path / "out"), tensors_of(saved("llama"))
    name = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(written[name], stored[name])
    assert {layer.name for layer in manifest.skipped} == set(ignore)
    config = read_json(tmp_path / "out" / "config.json")["quantization_config"]
    assert set(config["ignore"]) == set(ignore)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert loaded.get_submodule(name.removesuffix(".weight")).weight.dtype == torch.float32


def test_half_of_a_fused_layer_cannot_be_ignored(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path
) -> None:
    ignore = ("lm_head", "model.layers.0.self_attn.q_proj")
    scheme = load_scheme("int8").model_copy(update={"ignore": ignore})
    with pytest.raises(InputError, match=r"only a part of self_attn\.q_proj"):
        quantize(saved("llama"), calib, scheme, tmp_path / "out")


def copied(saved: Callable[..., Path], to: Path, **changes: Any) -> Path:
    shutil.copytree(saved("llama"), to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **changes}))
    return to


def test_all_problems_at_once(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path
) -> None:
    folder = copied(
        saved, tmp_path / "m", quantization_config={"quant_method": "gptq"}, vocab_size=20
    )
    with pytest.raises(InputError) as caught:
        quantize(folder, calib, load_scheme("int8"), folder / "out")
    for part in ("quantized already (gptq)", "lies inside the model folder", "20 tokens"):
        assert part in caught.value.message


def test_conv1d_is_refused(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="Conv1D"):
        quantize(saved("gpt2"), calib, load_scheme("int8"), tmp_path / "out")


def test_other_kinds_are_refused(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path
) -> None:
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2}
    experts = copied(saved, tmp_path / "moe", model_type="mixtral", **sizes)
    with pytest.raises(InputError, match="is a mixture of experts: only dense decoder models"):
        quantize(experts, calib, load_scheme("int8"), tmp_path / "out")
    encoder = copied(saved, tmp_path / "bert", model_type="bert")
    with pytest.raises(InputError, match="is an encoder: only dense decoder models"):
        quantize(encoder, calib, load_scheme("int8"), tmp_path / "out")


def test_an_existing_folder_is_left_alone(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(InputError, match="already exists"):
        quantize(saved("llama"), calib, load_scheme("int8"), tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine"]


def test_no_tokens_and_too_long_sequences(
    saved: Callable[..., Path], make_calibration: Callable[..., CalibrationSet], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="no tokens"):
        quantize(saved("llama"), make_calibration([]), load_scheme("int8"), tmp_path / "out")
    with pytest.raises(InputError, match=r"65 tokens.*takes 64"):
        quantize(saved("llama"), make_calibration([[65]]), load_scheme("int8"), tmp_path / "out")


@pytest.mark.parametrize("lengths", [[[1]], [[1, 1], [2]]])
def test_the_fewest_tokens(
    saved: Callable[..., Path], make_calibration: Callable[..., CalibrationSet], tmp_path: Path,
    lengths: list[list[int]],
) -> None:  # fmt: skip
    manifest = quantize(
        saved("llama"), make_calibration(lengths), load_scheme("int8"), tmp_path / "out"
    )
    assert manifest.calibration.tokens == sum(map(sum, lengths))


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
def test_non_finite_weights_are_named_and_leave_nothing(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path, name: str
) -> None:
    folder = copied(saved, tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InputError, match=f"{name} holds NaN"):
        quantize(folder, calib, load_scheme("int8-rtn"), tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_missing_and_misshapen_tensors(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path
) -> None:
    folder = copied(saved, tmp_path / "m", num_hidden_layers=3)
    with pytest.raises(InputError, match=r"model\.layers\.2.*is missing"):
        quantize(folder, calib, load_scheme("int8"), tmp_path / "out")
    folder = copied(saved, tmp_path / "untied", tie_word_embeddings=False)
    with pytest.raises(InputError, match=r"lacks 1 tensors.*lm_head\.weight"):
        quantize(folder, calib, load_scheme("int8"), tmp_path / "out")
    folder = copied(saved, tmp_path / "narrow", intermediate_size=70)
    with pytest.raises(InputError, match=r"has shape \[72, 48\].*\[70, 48\]"):
        quantize(folder, calib, load_scheme("int8"), tmp_path / "out")


def test_an_interrupted_run_leaves_nothing(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def interrupt(*_: Any) -> None:
        assert any(tmp_path.rglob("piece-*.safetensors"))
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "_write_rest", interrupt)
    with pytest.raises(KeyboardInterrupt):
        quantize(saved("llama"), calib, load_scheme("int8-rtn"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_differs_from_memory_fails(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    finish = output.Output.finish

    def damage(self: output.Output) -> None:
        finish(self)
        path = self.folder / "model.safetensors"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)

    monkeypatch.setattr(output.Output, "finish", damage)
    with pytest.raises(RunError, match="verification failed: 1 tensors"):
        quantize(saved("llama"), calib, load_scheme("int8-rtn"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_too_little_disk_and_memory_are_said_together(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    class Memory:
        available = 10_000

    monkeypatch.setattr(estimate, "free_disk_bytes", lambda _: 5)
    monkeypatch.setattr(estimate.psutil, "virtual_memory", Memory)
    with pytest.raises(ResourceError, match=r"of disk, 5 B are free; .*of memory, 9.8 KiB"):
        quantize(saved("llama"), calib, load_scheme("int8"), tmp_path / "out")


def test_the_disk_estimate_is_what_is_written(
    saved: Callable[..., Path], calib: CalibrationSet, tmp_path: Path
) -> None:
    scheme: Scheme = load_scheme("int8")
    job = engine.plan_job(saved("mistral"), scheme, tmp_path / "out", calib)
    manifest = quantize(saved("mistral"), calib, scheme, tmp_path / "out")
    assert estimate._weights_bytes(job) == manifest.coverage.output_bytes
