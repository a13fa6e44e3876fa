"""The engine: one block at a time is read, smoothed, rounded, run and written.

Each block sees what the quantized blocks before it give. All arithmetic is in float32, on the
first CUDA GPU where there is one, else on the CPU.
"""

from __future__ import annotations

import platform
import resource
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from qdeploy.calib.batches import CalibrationSet
from qdeploy.core.affine import dequantize
from qdeploy.core.artifacts import new_folder
from qdeploy.core.console import Bar, progress, say
from qdeploy.core.errors import InputError
from qdeploy.core.scheme import Scheme
from qdeploy.core.units import KIB, format_bytes
from qdeploy.models.checkpoint import open_checkpoint
from qdeploy.quant.block import BlockWork, record_inputs, run_quantized
from qdeploy.quant.estimate import estimate, refuse_too_large
from qdeploy.quant.job import Job, plan_job
from qdeploy.quant.manifest import (
    MANIFEST_NAME,
    CalibrationRecord,
    Coverage,
    LayerRecord,
    QuantManifest,
    SmoothingRecord,
    VerifyRecord,
)
from qdeploy.quant.output import Output, tensor_digest
from qdeploy.quant.skeleton import Skeleton
from qdeploy.quant.source import Source, open_source
from qdeploy.quant.stream import Stream, StreamBatch, sample_positions
from qdeploy.quant.verify import verify

SAMPLE_TOKENS = 512
"""Tokens, evenly spread over the calibration set, on which errors are measured and strengths
searched; the ranges of activations are taken over all tokens."""


@dataclass
class _Results:
    layers: list[LayerRecord] = field(default_factory=list)
    smoothing: list[SmoothingRecord] = field(default_factory=list)
    dequantized: dict[str, str] = field(default_factory=dict)


def quantize(model: Path, calibration: CalibrationSet, scheme: Scheme, out: Path) -> QuantManifest:
    """Quantize the model in folder `model` into the new folder `out`.

    Returns the manifest, which is also written into `out`. Raises InputError or ResourceError
    before anything is written, RunError when the written files are not what was computed; on any
    error `out` is not created.
    """
    start = time.monotonic()
    job = plan_job(model, scheme, out, calibration)
    needed = estimate(job, calibration, SAMPLE_TOKENS)
    refuse_too_large(needed, out)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    say(
        f"quantizing {job.shape.name} to {scheme.name} ({scheme.precision}) in float32 "
        f"on {device}: about {format_bytes(needed.memory_bytes)} of memory, "
        f"{format_bytes(needed.disk_bytes)} of disk"
    )
    with new_folder(out) as work, open_source(job.checkpoint) as source:
        output = Output(work)
        results = _quantize_blocks(job, calibration, source, output, device)
        _write_rest(job, source, output)
        checked = verify(work, job.format, output.digests, results.dequantized)
        manifest = _manifest(job, calibration, results, checked, work, start)
        manifest.write(work / MANIFEST_NAME)
    return manifest


def _quantize_blocks(
    job: Job, calibration: CalibrationSet, source: Source, output: Output, device: torch.device
) -> _Results:
    skeleton = Skeleton(job.folder, job.family, device)
    missing = skeleton.missing(set(job.checkpoint.tensors))
    if missing:
        raise InputError(
            f"{job.folder} lacks {len(missing)} tensors that config.json asks for, "
            f"first {missing[0]}"
        )
    stream = _start_stream(skeleton, calibration, source, device)
    results = _Results()
    with progress("quantizing blocks", job.shape.layers) as bar:
        for index in range(job.shape.layers):
            with skeleton.block(index, source) as module:
                _quantize_block(_work(job, index, module), stream, results, job, source, output)
            _report(bar, results, job.linears(index))
    return results


def _report(bar: Bar, results: _Results, linears: list[str]) -> None:
    worst = max((layer.output_error for layer in results.layers[-len(linears) :]), default=0.0)
    bar.advance(note=f"largest error of the block {worst:.2%}")


def _start_stream(
    skeleton: Skeleton, calibration: CalibrationSet, source: Source, device: torch.device
) -> Stream:
    real = [batch.attention_mask.reshape(-1).bool() for batch in calibration.batches]
    sampled = sample_positions(real, SAMPLE_TOKENS)
    pairs = [(batch.input_ids, batch.attention_mask) for batch in calibration.batches]
    starts = skeleton.first_calls(pairs, source)
    return Stream(
        [
            StreamBatch(hidden.cpu(), real_here, sampled_here, calls)
            for (hidden, calls), real_here, sampled_here in zip(starts, real, sampled, strict=True)
        ],
        device,
    )


def _work(job: Job, index: int, module: nn.Module) -> BlockWork:
    name = job.block_name(index)
    dtypes = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
    return BlockWork(
        name=name,
        index=index,
        module=module,
        family=job.family,
        shape=job.shape,
        scheme=job.scheme,
        linears=job.linears(index),
        dtypes={
            key: dtypes[job.checkpoint.tensors[f"{name}.{key}"].dtype]
            for key, _ in module.named_parameters()
        },
    )


def _quantize_block(
    work: BlockWork, stream: Stream, results: _Results, job: Job, source: Source, output: Output
) -> None:
    if any(algorithm.NEEDS_INPUTS for algorithm in job.algorithms):
        record_inputs(work, stream)
    for algorithm in job.algorithms:
        algorithm.run(work)
    output.add(_block_tensors(work, job, source))
    for linear in work.linears:
        weight = dequantize(work.quantized[linear], torch.float32).cpu()
        results.dequantized[f"{work.name}.{linear}"] = tensor_digest(weight)
    errors = run_quantized(work, stream)
    results.smoothing += work.smoothing
    results.layers += [
        LayerRecord(
            name=f"{work.name}.{linear}",
            block=work.index,
            scheme=job.scheme.precision,
            method="+".join(work.methods[linear]),
            output_error=error,
        )
        for linear, error in errors.items()
    ]


def _block_tensors(work: BlockWork, job: Job, source: Source) -> dict[str, Tensor]:
    """What the block's tensors of the source become, by full name."""
    parameters = dict(work.module.named_parameters())
    tensors: dict[str, Tensor] = {}
    for name in source.under(work.name):
        key = name.removeprefix(f"{work.name}.")
        linear = key.removesuffix(".weight")
        if linear in work.quantized:
            tensors.update(job.format.pack(f"{work.name}.{linear}", work.quantized[linear]))
        elif key in parameters:
            tensors[name] = parameters[key].to(work.dtypes[key])
        else:
            tensors[name] = source.read(name)
    return tensors


def _write_rest(job: Job, source: Source, output: Output) -> None:
    """Everything outside the blocks, as it is, and the files beside the weights."""
    blocks = tuple(f"{job.block_name(index)}." for index in range(job.shape.layers))
    names = [name for name in job.checkpoint.tensors if not name.startswith(blocks)]
    output.add({name: source.read(name) for name in names})
    output.finish()
    ignore = [layer.name for layer in job.skipped]
    output.write_config(
        job.config,
        job.format.quantization_config(job.scheme.weights, job.scheme.activations, ignore),
    )
    output.copy_side_files(job.folder)


def _manifest(
    job: Job,
    calibration: CalibrationSet,
    results: _Results,
    checked: VerifyRecord,
    folder: Path,
    start: float,
) -> QuantManifest:
    written = open_checkpoint(folder)
    tensors = job.checkpoint.tensors.values()
    total = sum(_count(info.shape) for info in tensors)
    quantized = sum(
        _count(job.checkpoint.tensors[f"{layer.name}.weight"].shape) for layer in results.layers
    )
    return QuantManifest(
        inputs={"model": job.checkpoint.digest, "calibration": calibration.digest},
        model=job.shape.name,
        source_digest=job.checkpoint.digest,
        output_digest=written.digest,
        calibration=CalibrationRecord(
            digest=calibration.digest,
            samples=calibration.samples,
            tokens=calibration.tokens,
            seed=calibration.seed,
            max_seq_len=calibration.max_seq_len,
            files=calibration.files,
        ),
        scheme=job.scheme.name,
        format=job.scheme.format,
        layers=results.layers,
        smoothing=results.smoothing,
        coverage=Coverage(
            quantized_parameters=quantized,
            total_parameters=total,
            quantized_share=quantized / total,
            source_bytes=job.checkpoint.size_bytes,
            output_bytes=written.size_bytes,
        ),
        skipped=job.skipped,
        wall_seconds=time.monotonic() - start,
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
        verify=checked,
        versions={
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "safetensors")},
        },
    )


def _count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
