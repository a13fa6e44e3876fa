"""`report.html`: one file that explains the evaluation and the verdict.

It loads nothing from anywhere and runs no script (its content security policy forbids both), so it
can be mailed, archived and opened offline. Whatever a model wrote is escaped by the template.
"""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from qdeploy.core.artifacts import write_text
from qdeploy.core.units import format_bytes, format_seconds
from qdeploy.gate.verdict import Verdict
from qdeploy.report import view
from qdeploy.report.inputs import ReportData, read_inputs
from qdeploy.report.limits import limits
from qdeploy.report.markdown import report_md

HTML_NAME = "report.html"
MARKDOWN_NAME = "report.md"


def write_report(
    eval_dir: Path,
    *,
    verdict: Verdict | None,
    manifests: dict[str, Path],
    plan: Path | None,
    out: Path | None = None,
    examples: int = 3,
) -> Path:
    """Write report.html and report.md for the evaluation in `eval_dir`; the path of the first.

    `manifests` are quant_manifest.json files by candidate, `plan` a plan.json; `out` is another
    folder than `eval_dir`. `examples` items of each task class are shown side by side; 0 keeps
    prompts and outputs out of the files. Raises InputError for an unreadable input.
    """
    data = read_inputs(eval_dir, verdict, manifests, plan, examples)
    folder = out or eval_dir
    write_text(folder / MARKDOWN_NAME, report_md(data))
    write_text(folder / HTML_NAME, report_html(data))
    return folder / HTML_NAME


def report_html(data: ReportData) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("qdeploy.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["bytes"] = format_bytes
    environment.filters["seconds"] = format_seconds
    source, _, _ = PackageLoader("qdeploy.report", "page").get_source(environment, "page.css")
    metrics = view.metric_rows(data)
    return environment.get_template("page.html.j2").render(
        css=Markup(source),  # noqa: S704 (our own file)
        data=data,
        report=data.report,
        verdict=data.verdict,
        marks=view.MARKS,
        rows=view.verdict_rows(data),
        metrics=metrics,
        most_flips=max([1, *(max(m.worse, m.better) for _, _, m in metrics)]),
        charts=view.charts(data),
        examples=view.example_groups(data),
        limits=limits(data),
        reproduce=view.reproduce(data),
    )
