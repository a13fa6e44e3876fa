"""Reads a finished evaluation and checks that it is a comparison at all.

Checked before any rule: samples are those that the report was made from, both sides answered the
same items with the same prompt tokens, every score is a number, the weights differ. A problem here
is an ERROR of every task class it concerns: an invalid comparison can neither pass nor fail.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from qdeploy.core.artifacts import read_artifact, sha256_file
from qdeploy.core.errors import InputError
from qdeploy.evals.results import (
    REPORT_NAME,
    SAMPLES_FOLDER,
    CandidateInfo,
    ClassResult,
    EvalReport,
    Sample,
    ScreenResult,
)

Pair = tuple[Sample, Sample]


@dataclass
class Evaluation:
    """A report with its samples, and what is wrong with them."""

    report: EvalReport
    folder: Path
    digest: str
    """sha256 of eval_report.json."""
    samples: dict[tuple[str, str], dict[str, Sample]] = field(default_factory=dict)
    """(candidate, task class) -> item -> sample."""
    problems: dict[str, list[str]] = field(default_factory=dict)
    """Candidate -> what makes its comparison invalid; those of the baseline concern all."""

    @property
    def baseline(self) -> CandidateInfo:
        """The candidate that the others are compared with."""
        return next(c for c in self.report.candidates if c.name == self.report.baseline)

    @property
    def others(self) -> list[CandidateInfo]:
        """All candidates but the baseline."""
        return [c for c in self.report.candidates if c.name != self.report.baseline]

    def screen(self, candidate: str) -> ScreenResult | None:
        """The candidate's screen, None when it was not measured."""
        return next((s for s in self.report.screens if s.candidate == candidate), None)

    def pairs(self, candidate: str, result: ClassResult) -> tuple[list[Pair], list[str]]:
        """(baseline's, candidate's) samples of a task class, and why they are no fair pairs."""
        before = self.samples.get((self.report.baseline, result.task_class), {})
        after = self.samples.get((candidate, result.task_class), {})
        both = [(before[item], after[item]) for item in before if item in after]
        wrong = []
        if not before:
            wrong.append("no items (n = 0)")
        if len(before) != result.n:
            wrong.append(f"the report counts {result.n} items, the samples hold {len(before)}")
        if missing := [item for item in before if item not in after]:
            wrong.append(f"{len(missing)} items without an answer, e.g. {missing[0]}")
        if extra := [item for item in after if item not in before]:
            wrong.append(f"{len(extra)} items that the baseline lacks, e.g. {extra[0]}")
        if other := [b.id for b, a in both if b.prompt_hash != a.prompt_hash]:
            wrong.append(f"{len(other)} items with other prompt tokens, e.g. {other[0]}")
        return both, wrong


def read_evaluation(path: Path, *, allow_same_weights: bool = False) -> Evaluation:
    """The evaluation at `path`: the folder of `qdeploy eval` or its eval_report.json.

    Raises InputError when there is no readable report; everything else that is wrong goes into
    `problems`.
    """
    file = path / REPORT_NAME if path.is_dir() else path
    report = read_artifact(file, EvalReport)
    names = [candidate.name for candidate in report.candidates]
    if report.baseline not in names:
        raise InputError(
            f"{file}: the baseline {report.baseline!r} is not among the candidates "
            f"{', '.join(names) or '(none)'}"
        )
    if len(names) < 2:
        raise InputError(
            f"{file} holds the baseline alone: there is nothing to decide",
            hint="evaluate at least two: qdeploy eval --compare bf16,int8=FOLDER",
        )
    evaluation = Evaluation(report, file.parent, sha256_file(file))
    for candidate in report.candidates:
        evaluation.problems[candidate.name] = _reported(report, candidate.name)
        for suite in sorted({result.suite for result in report.classes}):
            _read_samples(evaluation, candidate.name, suite)
    if not allow_same_weights:
        for candidate in evaluation.others:
            if candidate.weights_digest == evaluation.baseline.weights_digest:
                evaluation.problems[candidate.name].append(
                    "it has the baseline's very weights: nothing was compared"
                )
    return evaluation


def _reported(report: EvalReport, candidate: str) -> list[str]:
    """Errors that the evaluation itself found; one without a candidate concerns the baseline."""
    ours = [candidate, None] if candidate == report.baseline else [candidate]
    return [
        f"{finding.message} ({finding.code})"
        for finding in report.findings
        if finding.level == "error"
        and finding.candidate in ours
        and finding.code not in NOT_ABOUT_PAIRS
    ]


NOT_ABOUT_PAIRS = frozenset({"same_weights", "manifest_mismatch"})
"""Findings that the gate judges itself, from the same facts: a policy may allow the first, and
with the second the pairs are fair, so that a measured rejection must stay one."""


def _read_samples(evaluation: Evaluation, candidate: str, suite: str) -> None:
    relative = f"{SAMPLES_FOLDER}/{candidate}/{suite}.jsonl"
    file = evaluation.folder / relative
    problems = evaluation.problems[candidate]
    expected = evaluation.report.samples.get(relative)
    if expected is None:
        problems.append(f"the report names no samples {relative}")
        return
    if not file.is_file():
        problems.append(f"samples {relative} are missing")
        return
    if sha256_file(file) != expected:
        problems.append(f"samples {relative} are not those that the report was made from")
        return
    # Not splitlines: an answer may hold U+2028 and the like, which JSON leaves unescaped.
    lines = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            sample = Sample.model_validate(json.loads(line, parse_constant=_refuse))
        except (ValueError, ValidationError) as error:
            what = (
                str(error).splitlines()[0] if isinstance(error, _NotFiniteError) else "is no sample"
            )
            problems.append(f"samples {relative}:{number}: {what}")
            return
        items = evaluation.samples.setdefault((candidate, sample.task_class), {})
        if sample.id in items:
            problems.append(f"samples {relative}:{number}: item {sample.id} is there twice")
        items[sample.id] = sample


class _NotFiniteError(ValueError):
    """A score is NaN or infinite."""


def _refuse(constant: str) -> Any:
    raise _NotFiniteError(f"holds {constant}, which is no score")
