"""`qdeploy calib check DATA`: is this data fit to calibrate on?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from qdeploy.calib.audit import CalibAudit, Lengths, Pair

calib_app = typer.Typer(no_args_is_help=True, help="Look at calibration data.")


@calib_app.callback()
def _calib() -> None:
    """Look at calibration data."""


@calib_app.command()
def check(
    data: Annotated[Path, typer.Argument(help="A .jsonl, .csv or .txt file, or a folder of them.")],
    model: Annotated[
        str | None, typer.Option(help="Model folder: counts tokens under its chat template.")
    ] = None,
    evals: Annotated[
        Path | None,
        typer.Option(help="Folder of evaluation items (*.jsonl); default: the shipped suites."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Count rows, scripts, lengths, duplicates and personal data; find leaked eval items.

    Exit codes: 0 nothing blocks, 1 items of the evaluation are in the data, 2 bad input.
    """
    from qdeploy.calib.audit import audit
    from qdeploy.calib.template import load_tokenizer
    from qdeploy.core.shipped import shipped
    from qdeploy.models.source import model_folder

    tokenizer = load_tokenizer(model_folder(model)) if model else None
    result = audit(data, tokenizer=tokenizer, evals=evals or shipped("evals"))
    if as_json:
        typer.echo(result.to_json(), nl=False)
    else:
        _show(result)
    raise typer.Exit(1 if result.blocked else 0)


def _show(result: CalibAudit) -> None:
    rows = {
        "rows": f"{result.rows} ({_counts(result.by_reader)}): {result.chats} chats, "
        f"{result.texts} texts",
        "chats": f"{result.with_system} with a system message, {result.unanswered} unanswered",
        "scripts": f"{_counts(result.scripts)}; Chinese characters: {result.han_share:.0%} of all "
        "letters",
        "characters": _lengths(result.characters),
        "tokens": _lengths(result.tokens) if result.tokens else "not counted (no --model)",
        "duplicates": f"{result.duplicates.exact} exact, {result.duplicates.near} near",
        "personal data": f"{_counts(result.pii)}; in {result.pii_rows} rows",
    }
    for suite in result.leakage:
        rows[f"in {Path(suite.file).name}"] = f"{suite.leaked} of {suite.items} items leaked"
    width = max(map(len, rows))
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}  {value}")
    for pair in [*result.duplicates.examples, *_leaks(result)]:
        typer.echo(f"  {pair.row} repeats {pair.first}")
    for finding in result.findings:
        typer.secho(f"{finding.level}: {finding.text}", bold=finding.level == "block")


def _leaks(result: CalibAudit) -> list[Pair]:
    return [pair for suite in result.leakage for pair in suite.examples]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())


def _lengths(lengths: Lengths) -> str:
    return (
        f"{lengths.min} to {lengths.max}, median {lengths.median}, 95% up to {lengths.p95}, "
        f"{lengths.total} in all"
    )
