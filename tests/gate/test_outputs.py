from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from qdeploy.core.artifacts import read_artifact, sha256_file
from qdeploy.evals.results import REPORT_NAME, EvalReport, Finding
from qdeploy.gate.decide import decide
from qdeploy.gate.junit import junit_xml
from qdeploy.gate.outputs import write_outputs
from qdeploy.gate.policy import Policy
from qdeploy.gate.summary import summary_md
from qdeploy.gate.verdict import Blessing, Outcome, Verdict


def _mixed(factory: Any, folder: Path, names: tuple[str, ...] = ("bf16", "int8")) -> Path:
    """PASS in short_qa.en, INCONCLUSIVE in short_qa.zh, FAIL in long_generation.en for int8."""
    classes = [
        factory.Items("short_qa", "en"),
        factory.Items("short_qa", "zh", n=20),
        factory.Items("long_generation", "en"),
    ]
    classes[2].scores["int8"] = factory.worse("loop_free", range(60))
    written: Path = factory.write_evaluation(folder, classes, [factory.info(n) for n in names])
    return written


def _write(
    folder: Path, policy: Policy, require: tuple[str, ...] = ()
) -> tuple[Verdict, list[str]]:
    verdict = decide(folder, policy, require)
    paths = write_outputs(verdict, read_artifact(folder / REPORT_NAME, EvalReport), folder)
    return verdict, [path.name for path in paths]


def test_junit_has_a_case_per_class_candidate_and_rule(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    verdict = decide(_mixed(factory, tmp_path), policy, [])
    text = junit_xml(verdict)
    root = ET.fromstring(text)
    cases = root.findall(".//testcase")
    assert len(cases) == sum(len(judged.rules) for judged in verdict.classes)
    failures = {
        (case.get("classname"), failure.get("type"))
        for case in cases
        for failure in case.findall("failure")
    }
    assert failures == {
        ("short_qa.zh.int8", "inconclusive"),
        ("long_generation.en.int8", "rejected"),
    }
    assert root.get("tests") == str(len(cases))
    assert root.get("failures") == str(len(root.findall(".//failure")))
    assert "Wednesday" not in text
    assert "渡轮" not in text


def test_junit_tells_errors_and_survives_what_xml_cannot_hold(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    found = Finding(level="error", candidate=None, code="broken", message="bad \x00 & <byte>")
    folder = factory.write_evaluation(
        tmp_path,
        [factory.Items("short_qa", "zh")],
        [factory.info("bf16"), factory.info("int8")],
        findings=[found],
    )
    root = ET.fromstring(junit_xml(decide(folder, policy, [])))
    assert root.get("errors") == "2"
    assert root.find(".//error") is not None


def test_junit_skips_what_does_not_block(factory: Any, policy: Policy, tmp_path: Path) -> None:
    rules = [
        *policy.kinds["short_qa"],
        {"rule": "non_inferior", "metric": "char_f1", "margin": 0.01, "blocking": False},
    ]
    folder = factory.write_evaluation(
        tmp_path, [factory.Items("short_qa", "en")], [factory.info("bf16"), factory.info("int8")]
    )
    root = ET.fromstring(
        junit_xml(decide(folder, Policy(name="soft", kinds={"short_qa": rules}), []))
    )
    assert (root.get("failures"), root.get("skipped")) == ("0", "1")


def test_summary_keeps_within_its_limit_and_counts_what_it_left_out(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    verdict = decide(_mixed(factory, tmp_path), policy, [])
    assert summary_md(verdict).count("| short_qa.en |") == 1
    reason = "长" * 5000 + "|" + "<script>"
    long = [judged.model_copy(update={"reason": reason}) for judged in verdict.classes * 400]
    text = summary_md(verdict.model_copy(update={"classes": long}))
    assert len(text.encode()) <= 900 * 1024
    assert "more rows are in verdict.json" in text
    assert "<script>" not in text


def test_blessing_is_bound_to_what_passed(factory: Any, policy: Policy, tmp_path: Path) -> None:
    folder = _mixed(factory, tmp_path)
    verdict, names = _write(folder, policy)
    assert verdict.outcome is Outcome.FAIL
    assert names == ["verdict.json", "junit.xml", "summary.md", "blessing.json"]
    blessing = read_artifact(folder / "blessing.json", Blessing)
    assert (blessing.candidate, blessing.task_classes) == ("int8", ["short_qa.en"])
    assert blessing.weights_digest == factory.info("int8").weights_digest
    assert blessing.policy_digest == policy.digest()
    assert blessing.verdict_digest == sha256_file(folder / "verdict.json")
    assert blessing.inputs["eval_report"] == sha256_file(folder / REPORT_NAME)
    assert set(blessing.suites) == {"short_qa"}
    assert blessing.calibration_digest is None
    assert json.loads((folder / "verdict.json").read_text("utf-8"))["schema"] == "qdeploy.verdict/1"


def test_several_blessings_carry_the_name(factory: Any, policy: Policy, tmp_path: Path) -> None:
    folder = _mixed(factory, tmp_path, ("bf16", "int8", "int8-b"))
    _, names = _write(folder, policy)
    assert names[3:] == ["int8.blessing.json", "int8-b.blessing.json"]
    _, names = _write(folder, policy, ("int8",))
    assert names[3:] == ["blessing.json"]
    assert [path.name for path in folder.glob("*blessing.json")] == ["blessing.json"]


def test_an_old_blessing_does_not_outlive_a_new_verdict(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    folder = _mixed(factory, tmp_path)
    _write(folder, policy)
    absent = policy.model_copy(update={"classes": {"my_faq": policy.kinds["short_qa"]}})
    verdict, names = _write(folder, absent)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.errors
    assert "blessing.json" not in names
    assert not (folder / "blessing.json").exists()
