"""`qdeploy quantize`: make a model smaller, calibrated on the team's own data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdeploy.core.errors import InputError
from qdeploy.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from qdeploy.quant.manifest import QuantManifest


def quantize(
    model: Annotated[
        str | None, typer.Argument(help="Model: a folder in Hugging Face layout, or a hub id.")
    ] = None,
    calib: Annotated[
        Path | None,
        typer.Option(help="Calibration data: a .jsonl, .csv or .txt file, or a folder."),
    ] = None,
    scheme: Annotated[
        str, typer.Option(help="A scheme of recipes/quantize, or the path of a YAML file.")
    ] = "int8",
    out: Annotated[Path | None, typer.Option(help="New folder for the quantized model.")] = None,
    samples: Annotated[int, typer.Option(help="Calibration samples.")] = 64,
    max_seq_len: Annotated[int, typer.Option(help="Tokens of a sample at most.")] = 512,
    seed: Annotated[int, typer.Option(help="Of the draw of the samples.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Quantize a model, write it, read it again and verify it.

    Exit codes: 0 done, 1 the written files are not what was computed, 2 bad input.
    """
    for value, name in ((model, "MODEL"), (calib, "--calib"), (out, "--out")):
        if value is None:
            raise InputError(f"{name} is missing", hint="see qdeploy quantize --help")
    assert model is not None
    assert calib is not None
    assert out is not None
    from qdeploy.core.artifacts import refuse_existing
    from qdeploy.models.source import model_folder
    from qdeploy.quant.scheme import load_scheme

    chosen = load_scheme(scheme)
    refuse_existing(out)
    folder = model_folder(model)
    from qdeploy.calib.batches import calibration_set
    from qdeploy.calib.template import load_tokenizer
    from qdeploy.quant.engine import quantize as run

    tokenizer = load_tokenizer(folder)
    calibration = calibration_set(
        calib, tokenizer, samples=samples, max_seq_len=max_seq_len, seed=seed
    )
    manifest = run(folder, calibration, chosen, out)
    if json_:
        typer.echo(manifest.to_json(), nl=False)
    else:
        _show(manifest, out)


def _show(manifest: QuantManifest, out: Path) -> None:
    coverage = manifest.coverage
    worst = max(manifest.layers, key=lambda layer: layer.output_error, default=None)
    smoothed = [record for record in manifest.smoothing if record.alpha is not None]
    rows = {
        "model": f"{manifest.model}, {manifest.scheme}, {manifest.format}",
        "size": f"{format_bytes(coverage.source_bytes)} -> {format_bytes(coverage.output_bytes)}",
        "quantized": f"{len(manifest.layers)} layers, {coverage.quantized_share:.1%} of the "
        "parameters",
        "left alone": ", ".join(f"{layer.name} ({layer.reason})" for layer in manifest.skipped),
        "smoothing": f"{len(smoothed)} of {len(manifest.smoothing)} pairs",
        "calibration": f"{manifest.calibration.samples} samples, "
        f"{manifest.calibration.tokens} tokens",
        "verified": f"{manifest.verify.tensors} tensors read again, all equal",
        "took": f"{format_seconds(manifest.wall_seconds)}, "
        f"at most {format_bytes(manifest.peak_rss_bytes)} of memory",
        "written to": str(out),
    }
    if worst is not None:
        rows["largest output error"] = f"{worst.output_error:.3%} in {worst.name}"
    width = max(map(len, rows))
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}  {value}")
