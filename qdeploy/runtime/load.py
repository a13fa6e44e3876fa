"""From a model folder to a running candidate.

Weights may be BF16, FP16, FP32, INT8 or INT4; the arithmetic is float32 everywhere (except for the
integer products of INT8 layers), because 16-bit products are slow or emulated on most CPUs and
round differently from machine to machine. A comparison then shows what the weights and the
quantized activations do, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel

from qdeploy.core.affine import QuantizedTensor, dequantize
from qdeploy.core.artifacts import read_json, sha256_text
from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.formats import compressed_tensors
from qdeploy.models.checkpoint import Checkpoint, open_checkpoint
from qdeploy.models.source import model_folder, read_config
from qdeploy.runtime.build import build_model, read_tensors
from qdeploy.runtime.candidate import Candidate
from qdeploy.runtime.int8_linear import Activations, Int8Linear
from qdeploy.runtime.int_mm import fastest_kernel
from qdeploy.runtime.spec import PRECISIONS

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_STORED = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
_RESIDENT_SHARE = 0.25
"""Share of the available memory that float32 copies of INT8 weights may take."""
# The same name as quant.manifest.MANIFEST_NAME; runtime lies below quant and must not import it.
_MANIFEST = "quant_manifest.json"


def load_candidate(name: str, folder: Path, precision: str | None) -> Candidate:
    """The model in `folder`, ready to run.

    `precision` ('bf16', 'fp16', 'fp32') rounds a plain folder's weights; None takes them as
    stored. Raises InputError for a folder that is incomplete, damaged or in a format that cannot
    be run, and for a precision of an already quantized folder.
    """
    folder = model_folder(folder)
    config = read_config(folder)
    checkpoint = open_checkpoint(folder)
    if precision is not None and precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS)
    if config.get("quantization_config"):
        if precision is not None:
            raise InputError(
                f"{folder} is already quantized, it has no {precision} form",
                hint=f"name it: NAME={folder}, and take {precision} from the unquantized model",
            )
        return _load_quantized(name, checkpoint, config)
    return _load_plain(name, checkpoint, config, precision)


def _load_plain(
    name: str, checkpoint: Checkpoint, config: dict[str, Any], precision: str | None
) -> Candidate:
    stored = _stored_format(checkpoint)
    model = build_model(checkpoint.folder, config, None)
    digest = _digest(checkpoint)
    weights_bytes = checkpoint.size_bytes
    if precision is not None:
        values = sum(parameter.numel() for parameter in model.parameters())
        weights_bytes = values * _DTYPES[precision].itemsize
        if _round_weights(model, _DTYPES[precision], checkpoint.folder):
            digest = sha256_text(f"{digest} rounded to {precision}")
    form = precision or stored
    runtime = f"float32 arithmetic on {form.upper()} weights"
    return _candidate(name, checkpoint, model, (form, runtime, digest, weights_bytes))


def _stored_format(checkpoint: Checkpoint) -> str:
    found = {
        info.dtype for info in checkpoint.tensors.values() if info.dtype not in ("I64", "BOOL")
    }
    unknown = sorted(found - set(_STORED))
    if unknown or not found:
        raise InputError(
            f"{checkpoint.folder} stores weights as {', '.join(unknown) or 'nothing'} without a "
            "quantization_config: it cannot be run",
            hint="give a folder in BF16, FP16, FP32 or compressed-tensors int-quantized",
        )
    return "+".join(sorted(_STORED[dtype] for dtype in found))


def _round_weights(model: PreTrainedModel, dtype: torch.dtype, folder: Path) -> bool:
    """Round all parameters to `dtype` in place; whether any value changed."""
    changed = False
    for name, parameter in model.named_parameters():
        rounded = parameter.detach().to(dtype).float()
        if not bool(rounded.isfinite().all()):
            raise InputError(f"{folder}: {name} has values that {dtype} cannot hold")
        changed = changed or not torch.equal(rounded, parameter)
        parameter.data.copy_(rounded)
    return changed


def _load_quantized(name: str, checkpoint: Checkpoint, config: dict[str, Any]) -> Candidate:
    found = config["quantization_config"]
    form = f"{found.get('quant_method')}/{found.get('format') or found.get('checkpoint_format')}"
    try:
        layers = compressed_tensors.linear_names(config, checkpoint.tensors)
    except InputError as error:
        raise InputError(
            f"{checkpoint.folder} is quantized as {form}: {error.message}",
            hint="compressed-tensors can be run: int-quantized (INT8 with dynamic activations) and "
            "pack-quantized (INT4 weights per group)",
        ) from None
    tensors = read_tensors(checkpoint)
    weights = {layer: compressed_tensors.unpack(layer, tensors) for layer in layers}
    tensors = {key: tensor for key, tensor in tensors.items() if not _is_weight(key, weights)}
    for layer, weight in weights.items():
        tensors[f"{layer}.weight"] = dequantize(weight, torch.float32)
    model = build_model(checkpoint.folder, config, tensors)
    del tensors
    runtime = _put_integers(model, weights)
    return _candidate(
        name, checkpoint, model, (form, runtime, _digest(checkpoint), checkpoint.size_bytes)
    )


def _is_weight(tensor: str, layers: Container[str]) -> bool:
    """Whether `tensor` is a part of the weight of one of the quantized `layers`."""
    layer, _, part = tensor.rpartition(".")
    return layer in layers and part.startswith("weight")


def _put_integers(model: PreTrainedModel, weights: dict[str, QuantizedTensor]) -> str:
    """Let INT8 layers multiply integers; what the arithmetic is, in words.

    INT4 layers keep their dequantized weights: their activations are no integers.
    """
    if any(weight.bits == 4 for weight in weights.values()):
        return "float32 arithmetic on INT4 weights"
    _replace_linears(model, weights)
    kernel = fastest_kernel(model.device)
    named = "exact float32 kernel" if kernel == "float32" else "torch._int_mm kernel"
    return f"int8 x int8 -> int32, {named}; the rest float32 arithmetic"


def _replace_linears(model: PreTrainedModel, weights: dict[str, QuantizedTensor]) -> None:
    """Put an Int8Linear in the place of every named linear layer."""
    activations = Activations()
    left = int(psutil.virtual_memory().available * _RESIDENT_SHARE)
    for name, weight in weights.items():
        parent, _, child = name.rpartition(".")
        linear = model.get_submodule(name)
        if type(linear) is not nn.Linear:
            raise InputError(
                f"{name} is a {type(linear).__name__}; INT8 is run for nn.Linear layers only"
            )
        left -= 4 * weight.q.numel()
        moved = QuantizedTensor(weight.q.to(model.device), weight.scale.to(model.device))
        bias_O: Tensor | None = linear.bias
        layer = Int8Linear(moved, bias_O, resident=left >= 0, activations=activations)
        setattr(model.get_submodule(parent), child, layer)


def _candidate(
    name: str, checkpoint: Checkpoint, model: PreTrainedModel, facts: tuple[str, str, str, int]
) -> Candidate:
    form, runtime, digest, weights_bytes = facts
    folder = checkpoint.folder
    max_positions = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(max_positions, int):
        raise InputError(f"{folder / 'config.json'} has no max_position_embeddings")
    tokenizer = _tokenizer(folder)
    return Candidate(
        name=name,
        model=model,
        tokenizer=tokenizer,
        end_ids=_end_ids(folder, model, tokenizer),
        max_positions=max_positions,
        source=str(folder),
        format=form,
        runtime=runtime,
        weights_digest=digest,
        weights_bytes=weights_bytes,
        manifest_matches=_manifest_matches(checkpoint),
    )


def _tokenizer(folder: Path) -> Any:
    load: Callable[..., Any] = AutoTokenizer.from_pretrained
    try:
        return load(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InputError(
            f"{folder} has no tokenizer that transformers can load: {str(error).splitlines()[0]}",
            hint="copy tokenizer.json and tokenizer_config.json from the model's release",
        ) from None


def _end_ids(folder: Path, model: PreTrainedModel, tokenizer: Any) -> frozenset[int]:
    """All ids that generation_config.json, config.json or the tokenizer call the end."""
    path = folder / "generation_config.json"
    generation = read_json(path).get("eos_token_id") if path.is_file() else None
    ids: set[int] = set()
    for found in (generation, model.config.eos_token_id, tokenizer.eos_token_id):
        ids.update(found if isinstance(found, list) else [] if found is None else [found])
    return frozenset(ids)


def _manifest_matches(checkpoint: Checkpoint) -> bool | None:
    path = checkpoint.folder / _MANIFEST
    if not path.is_file():
        return None
    manifest = read_json(path)
    expected = manifest.get("output_digest") if isinstance(manifest, dict) else None
    return expected == _digest(checkpoint)


def _digest(checkpoint: Checkpoint) -> str:
    """`Checkpoint.digest`, computed once while the files stay as they are."""
    stats = [(checkpoint.folder / file).stat() for file in ("config.json", *checkpoint.files)]
    return _digest_of(checkpoint.folder, tuple((s.st_ino, s.st_size, s.st_mtime_ns) for s in stats))


@lru_cache(maxsize=64)
def _digest_of(folder: Path, _stats: tuple[tuple[int, int, int], ...]) -> str:
    return open_checkpoint(folder).digest
