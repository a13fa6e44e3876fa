"""What a report is made of, read from files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qdeploy.core.artifacts import read_artifact
from qdeploy.evals.results import EvalReport, Sample
from qdeploy.gate.evidence import Evaluation, read_evaluation
from qdeploy.gate.verdict import Verdict
from qdeploy.plan.schema import Plan
from qdeploy.quant.manifest import MANIFEST_NAME, QuantManifest

PLAN_NAME = "plan.json"


@dataclass(frozen=True)
class ReportData:
    """Everything that a report shows."""

    evaluation: Evaluation
    verdict: Verdict | None
    manifests: dict[str, QuantManifest]
    """Candidate -> its manifest."""
    plan: Plan | None
    examples: int
    """Items shown side by side in each task class; 0 keeps prompts and outputs out."""

    @property
    def report(self) -> EvalReport:
        """The evaluation's own report."""
        return self.evaluation.report

    def samples(self, candidate: str, task_class: str) -> list[Sample]:
        """The samples of a candidate in a task class, in the file's order."""
        return list(self.evaluation.samples.get((candidate, task_class), {}).values())


def find_manifests(report: EvalReport) -> dict[str, Path]:
    """Candidate -> the quant_manifest.json in its folder, where there is one."""
    paths = {c.name: Path(c.source) / MANIFEST_NAME for c in report.candidates}
    return {name: path for name, path in paths.items() if path.is_file()}


def find_plan(eval_dir: Path) -> Path | None:
    """plan.json beside the evaluation's folder or in it, where there is one."""
    places = (eval_dir.resolve().parent / PLAN_NAME, eval_dir / PLAN_NAME)
    return next((path for path in places if path.is_file()), None)


def read_inputs(
    eval_dir: Path,
    verdict: Verdict | None,
    manifests: dict[str, Path],
    plan: Path | None,
    examples: int,
) -> ReportData:
    """All parts of a report. Raises InputError for an unreadable one."""
    return ReportData(
        # Whether equal weights are allowed is for the gate to say.
        evaluation=read_evaluation(eval_dir, allow_same_weights=True),
        verdict=verdict,
        manifests={name: read_artifact(path, QuantManifest) for name, path in manifests.items()},
        plan=read_artifact(plan, Plan) if plan is not None else None,
        examples=examples,
    )
