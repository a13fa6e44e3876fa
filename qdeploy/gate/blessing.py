"""Blessings: permission for a candidate to serve the task classes that it passed.

Bound by hash to weights, calibration data, suites, policy and verdict, so that a deployment can
refuse anything else. Nothing is blessed when the comparison was not valid.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from qdeploy.core.artifacts import read_artifact, sha256_text
from qdeploy.evals.results import CandidateInfo, EvalReport
from qdeploy.gate.verdict import BLESSING_NAME, Blessing, Outcome, Verdict
from qdeploy.quant.manifest import MANIFEST_NAME, QuantManifest


def blessings(verdict: Verdict, report: EvalReport) -> dict[str, Blessing]:
    """File name -> blessing, of each candidate in question that passed somewhere.

    In question are the required candidates, else all but the baseline. The file of a single one
    is 'blessing.json', of several 'NAME.blessing.json'.
    """
    if verdict.errors:
        return {}
    names = verdict.required or [c.name for c in report.candidates if c.name != report.baseline]
    found = {}
    for candidate in report.candidates:
        passed = [
            judged.task_class
            for judged in verdict.classes
            if judged.candidate == candidate.name and judged.outcome is Outcome.PASS
        ]
        if candidate.name in names and passed:
            file = BLESSING_NAME if len(names) == 1 else f"{candidate.name}.{BLESSING_NAME}"
            found[file] = _blessing(verdict, report, candidate, passed)
    return found


def _blessing(
    verdict: Verdict, report: EvalReport, candidate: CandidateInfo, passed: list[str]
) -> Blessing:
    suites = {result.suite for result in report.classes if result.task_class in passed}
    return Blessing(
        inputs=verdict.inputs,
        candidate=candidate.name,
        task_classes=passed,
        weights_digest=candidate.weights_digest,
        calibration_digest=_calibration(candidate),
        suites={name: digest for name, digest in report.suites.items() if name in suites},
        policy_digest=verdict.inputs["policy"],
        verdict_digest=sha256_text(verdict.to_json()),
        versions=report.versions,
        machine=report.machine,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _calibration(candidate: CandidateInfo) -> str | None:
    """The calibration's digest by the manifest of these very weights, if it can be read here."""
    path = Path(candidate.source) / MANIFEST_NAME
    if not path.is_file():
        return None
    manifest = read_artifact(path, QuantManifest)
    same = manifest.output_digest == candidate.weights_digest
    return manifest.calibration.digest if same else None
