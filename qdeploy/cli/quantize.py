"""`qdeploy quantize`: make a model smaller, calibrated on the team's own data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdeploy.cli.project import PROJECT_NAME, Project, find_project, require
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
        str | None,
        typer.Option(
            help="A scheme of recipes/quantize, or a YAML file. Default: the schemes of the "
            "project's candidates, else int8."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New folder for the quantized model.")] = None,
    samples: Annotated[int, typer.Option(help="Calibration samples.")] = 64,
    max_seq_len: Annotated[int, typer.Option(help="Tokens of a sample at most.")] = 512,
    seed: Annotated[int, typer.Option(help="Of the draw of the samples.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Quantize a model, write it, read it again and verify it.

    Exit codes: 0 done, 1 the written files are not what was computed, 2 bad input.
    """
    from qdeploy.core.artifacts import refuse_existing
    from qdeploy.core.scheme import load_scheme
    from qdeploy.models.source import model_folder, read_config

    project = find_project()
    folder = model_folder(require(model or (project.model if project else None), "model", "MODEL"))
    read_config(folder)
    own = project.calib.data if project and project.calib else None
    data = Path(require(str(calib) if calib else own, "calibration data", "--calib"))
    jobs = [(load_scheme(name), target) for name, target in _jobs(project, scheme, out)]
    for _, target in jobs:
        refuse_existing(target)
    from qdeploy.calib.batches import calibration_set
    from qdeploy.calib.template import load_tokenizer
    from qdeploy.quant.engine import quantize as run

    calibration = calibration_set(
        data, load_tokenizer(folder), samples=samples, max_seq_len=max_seq_len, seed=seed
    )
    documents = []
    for chosen, target in jobs:
        manifest = run(folder, calibration, chosen, target)
        documents.append(manifest.model_dump(mode="json", by_alias=True))
        if not json_:
            _show(manifest, target)
    if json_:
        found = documents[0] if len(documents) == 1 else documents
        typer.echo(json.dumps(found, ensure_ascii=False, indent=2))


def _jobs(project: Project | None, scheme: str | None, out: Path | None) -> list[tuple[str, Path]]:
    """Schemes and output folders: as given, or those of the project's candidates."""
    if out is not None:
        return [(scheme or "int8", out)]
    candidates = project.candidates.values() if project else ()
    jobs = [
        (candidate.scheme, Path(candidate.out))
        for candidate in candidates
        if candidate.scheme and candidate.out and scheme in (None, candidate.scheme)
    ]
    if not jobs:
        what = "no candidate has a scheme" if scheme is None else f"no candidate has {scheme!r}"
        raise InputError(
            "no output folder given" + (f", and {what} in {PROJECT_NAME}" if project else ""),
            hint="give --out FOLDER",
        )
    return jobs


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
