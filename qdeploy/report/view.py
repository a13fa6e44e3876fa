"""Turns the inputs of a report into what the template and the Markdown print."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from markupsafe import Markup

from qdeploy.evals.results import ClassResult, MetricResult
from qdeploy.gate.verdict import ClassVerdict, Outcome, RuleResult
from qdeploy.report.charts.differences import Difference, differences_chart
from qdeploy.report.charts.layers import blocks_chart, linears_chart
from qdeploy.report.charts.loops import loops_chart
from qdeploy.report.charts.memory import serving_chart, training_chart
from qdeploy.report.examples import Example, lost_and_won
from qdeploy.report.inputs import ReportData

MARKS = {
    Outcome.PASS: "✓",
    Outcome.FAIL: "✕",
    Outcome.INCONCLUSIVE: "?",
    Outcome.ERROR: "!",
}


@dataclass(frozen=True)
class Chart:
    """A chart with its heading and how to read it."""

    title: str
    text: str
    body: Markup


@dataclass(frozen=True)
class ExampleGroup:
    """Examples of one task class and candidate."""

    title: str
    lost: list[Example]
    won: list[Example]


def verdict_rows(data: ReportData) -> list[tuple[str, str, list[ClassVerdict]]]:
    """(task class, where it goes, verdict of each candidate), in the report's order."""
    if data.verdict is None:
        return []
    verdict = data.verdict
    return [
        (name, goes_to, [judged for judged in verdict.classes if judged.task_class == name])
        for name, goes_to in verdict.routing.items()
    ]


def metric_rows(data: ReportData) -> list[tuple[ClassResult, str, MetricResult]]:
    """(task class, candidate, result) of every metric."""
    return [
        (result, candidate, metric)
        for result in data.report.classes
        for candidate, metrics in result.metrics.items()
        for metric in metrics
    ]


def charts(data: ReportData) -> list[Chart]:
    """The charts that there is something to show in."""
    by_name = {candidate.name: at for at, candidate in enumerate(data.report.candidates)}
    screens = [(by_name[s.candidate], s) for s in data.report.screens if s.candidate in by_name]
    found = [
        Chart(
            "Paired differences against the margin",
            "Candidate minus baseline on the same items, with its interval. Every row is drawn in "
            "units of its own margin and turned so that right is better: an interval wholly right "
            "of the dashed line passes, one wholly left of it fails, one across it is not known "
            "yet.",
            differences_chart(_differences(data)),
        ),
        *_loop_charts(data),
        Chart(
            "Error by decoder block",
            "Both models get the baseline's input to each block. A single block far above its "
            "neighbours means a broken layer.",
            blocks_chart(screens, _block_limit(data)),
        ),
        *(
            Chart(
                f"Error by layer: {name}",
                "Output error of each quantized linear layer on the calibration tokens.",
                linears_chart(manifest.layers),
            )
            for name, manifest in data.manifests.items()
        ),
        Chart(
            "Memory: weights when serving",
            "Bytes of weights; the key-value cache comes on top and is the same for all.",
            serving_chart(data.report.candidates),
        ),
    ]
    if data.plan is not None:
        plan = data.plan
        found.append(
            Chart(
                f"Memory: training {plan.model.name} on {plan.request.gpus} x {plan.gpu.name}",
                "Planned peak of one GPU by part, for each strategy; the line is the GPU's memory.",
                training_chart(plan),
            )
        )
    return [chart for chart in found if chart.body]


def example_groups(data: ReportData) -> list[ExampleGroup]:
    """Worst and best items of each task class and candidate."""
    groups = []
    for result in data.report.classes if data.examples else []:
        for candidate in data.evaluation.others:
            names = (data.report.baseline, candidate.name)
            sides = [data.samples(name, result.task_class) for name in names]
            lost, won = lost_and_won(result, sides[0], sides[1], names, data.examples)
            if lost or won:
                groups.append(ExampleGroup(f"{result.task_class}: {candidate.name}", lost, won))
    return groups


def reproduce(data: ReportData) -> list[str]:
    """The commands that made this report, for a shell."""
    report = data.report
    compare = ",".join(
        c.name if c.format == c.name else f"{c.name}={c.source}" for c in report.candidates
    )
    words = ["qdeploy", "eval", report.model, "--compare", compare]
    for suite in report.suites:
        words += ["--suite", suite]
    if report.decoding.get("limit", "none") != "none":
        for limit in report.decoding["limit"].split():
            words += ["--limit", limit]
        words += ["--seed", str(report.seed)]
    if report.decoding.get("cap", "none") != "none":
        words += ["--max-new-tokens", report.decoding["cap"]]
    commands = [shlex.join(words)]
    if data.verdict is not None:
        words = ["qdeploy", "gate", str(data.evaluation.folder), "--policy", data.verdict.policy]
        for name in data.verdict.required:
            words += ["--require", name]
        commands.append(shlex.join(words))
    return commands


def _differences(data: ReportData) -> list[Difference]:
    rules = _rules(data)
    rows = []
    for result, candidate, metric in metric_rows(data):
        rule = rules.get((result.task_class, candidate, metric.metric))
        if rule is None and data.verdict is not None:
            continue
        rows.append(_difference(result, candidate, metric, rule))
    return rows


def _rules(data: ReportData) -> dict[tuple[str, str, str], RuleResult]:
    if data.verdict is None:
        return {}
    return {
        (judged.task_class, judged.candidate, rule.metric): rule
        for judged in data.verdict.classes
        for rule in judged.rules
        if rule.rule == "non_inferior" and rule.measured is not None
    }


def _difference(
    result: ClassResult, candidate: str, metric: MetricResult, rule: RuleResult | None
) -> Difference:
    name = f"{candidate} · {metric.metric}"
    higher = metric.direction == "higher"
    if rule is None or rule.measured is None:
        return Difference(
            result.task_class, name, metric.difference, metric.low, metric.high, None, higher,
            None, metric.n,
        )  # fmt: skip
    return Difference(
        result.task_class, name, rule.measured, rule.low, rule.high, abs(rule.limit), higher,
        rule.outcome, rule.n, rule.blocking,
    )  # fmt: skip


def _loop_charts(data: ReportData) -> list[Chart]:
    found = []
    for result in data.report.classes:
        if result.kind != "long_generation":
            continue
        curves = [(c.name, data.samples(c.name, result.task_class)) for c in data.report.candidates]
        found.append(
            Chart(
                f"Texts in a loop by position: {result.task_class}",
                "Share of the generated texts that have fallen into a loop by a token position.",
                loops_chart([(name, samples) for name, samples in curves if samples]),
            )
        )
    return found


def _block_limit(data: ReportData) -> float | None:
    judged = data.verdict.classes if data.verdict is not None else []
    return next(
        (r.limit for c in judged for r in c.rules if r.metric == "block_error" and r.limit), None
    )
