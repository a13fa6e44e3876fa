from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from qdeploy.core.artifacts import write_text
from qdeploy.evals.results import Finding
from qdeploy.gate.decide import decide
from qdeploy.gate.policy import Policy
from qdeploy.gate.verdict import Verdict
from qdeploy.plan.planner import plan
from qdeploy.plan.request import PlanRequest
from qdeploy.quant.manifest import (
    CalibrationRecord,
    Coverage,
    LayerRecord,
    QuantManifest,
    VerifyRecord,
)
from qdeploy.report.html import write_report

HOSTILE = "</style></svg><script src=//evil.example/x.js>alert(1)</script><img src=x onerror=y>"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")


class _Page(HTMLParser):
    """Tags with their attributes, and the text outside style."""

    VOID = frozenset({"meta", "line", "rect", "circle", "path", "img", "link", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def _evaluation(factory: Any, folder: Path) -> Path:
    classes = [
        factory.Items("short_qa", "en"),
        factory.Items("short_qa", "zh"),
        factory.Items("long_generation", "en"),
    ]
    classes[1].scores["int8"] = factory.worse("exact_match", range(2))
    classes[1].outputs["int8"] = {0: "星期五", 1: HOSTILE}
    classes[2].scores["int8"] = factory.worse("loop_free", range(0, 60, 2))
    classes[2].outputs["int8"] = dict.fromkeys(range(0, 60, 2), "再说一遍," * 400)
    found = Finding(level="warning", candidate="int8", code="odd", message=f"odd {HOSTILE}")
    candidates = [factory.info("bf16"), factory.info("int8")]
    written: Path = factory.write_evaluation(folder, classes, candidates, findings=[found])
    return written


def _manifest(folder: Path) -> Path:
    layers = [
        LayerRecord(
            name=f"model.layers.{at}.mlp.down_proj", block=at, scheme="w8", method="rtn",
            output_error=0.001 * (at + 1),
        )
        for at in range(4)
    ]  # fmt: skip
    manifest = QuantManifest(
        model="demo", source_digest="a", output_digest="b", scheme="int8", format="ct",
        calibration=CalibrationRecord(
            digest="c", samples=16, tokens=900, seed=0, max_seq_len=128, files={}
        ),
        layers=layers, smoothing=[], skipped=[], wall_seconds=1, peak_rss_bytes=1,
        coverage=Coverage(
            quantized_parameters=8, total_parameters=10, quantized_share=0.8, source_bytes=20,
            output_bytes=12,
        ),
        verify=VerifyRecord(tensors=4, mismatches=0, max_abs_error=0.0), versions={},
    )  # fmt: skip
    manifest.write(folder / "quant_manifest.json")
    return folder / "quant_manifest.json"


@pytest.fixture
def judged(factory: Any, policy: Policy, tmp_path: Path) -> tuple[Path, Verdict]:
    folder = _evaluation(factory, tmp_path / "eval")
    return folder, decide(folder, policy, [])


def _full(folder: Path, verdict: Verdict) -> str:
    plan_path = folder / "plan.json"
    write_text(plan_path, plan(PlanRequest("7B", "A100-80GB", 2)).to_json())
    path = write_report(
        folder, verdict=verdict, manifests={"int8": _manifest(folder)}, plan=plan_path
    )
    assert path == folder / "report.html"
    return path.read_text("utf-8")


def test_the_page_is_one_file_that_loads_nothing(judged: tuple[Path, Verdict]) -> None:
    text = _full(*judged)
    page = _Page(text)
    assert page.open == []
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "image", "use"}
    for _, attributes in page.tags:
        assert not {name for name in attributes if name.startswith("on")}
        assert not {"src", "href", "xlink:href", "srcset", "action"} & set(attributes)
    assert not re.search(r"url\(|@import|https?:", text.split("<body>")[0])
    policies = [a["content"] for _, a in page.tags if a.get("http-equiv")]
    assert policies
    assert str(policies[0]).startswith("default-src 'none'")


def test_what_a_model_wrote_stays_text(judged: tuple[Path, Verdict]) -> None:
    text = _full(*judged)
    assert "<script" not in text
    assert "<img" not in text
    assert "alert(1)" in _Page(text).text


def test_the_page_tells_verdict_charts_examples_and_limits(judged: tuple[Path, Verdict]) -> None:
    folder, verdict = judged
    page = _Page(_full(folder, verdict))
    words = " ".join(page.text.split())
    assert verdict.decision in words
    for expected in (
        "FAIL",
        "Where each task class goes",
        "Paired differences against the margin",
        "Texts in a loop by position: long_generation.en",
        "int8: 50.0% of 60 texts",
        "Error by decoder block",
        "Error by layer: int8",
        "Memory: weights when serving",
        "Memory: training",
        "zero3",
        "in a loop from token 30",
        "渡轮哪一天不开?",
        "What was not measured",
        "Greedy decoding only",
        "qdeploy eval models/demo --compare bf16,int8=models/int8",
        "x86_64, 2 CPUs",
    ):
        assert expected in words
    marks = [tag for tag, _ in page.tags if tag == "mark"]
    assert marks
    assert [a.get("lang") for tag, a in page.tags if tag == "p" and a.get("lang") == "zh"]


def test_no_examples_keeps_prompts_and_outputs_out(judged: tuple[Path, Verdict]) -> None:
    folder, verdict = judged
    path = write_report(folder, verdict=verdict, manifests={}, plan=None, examples=0)
    for text in (path.read_text("utf-8"), (folder / "report.md").read_text("utf-8")):
        assert "渡轮" not in text
        assert "星期" not in text


def test_without_a_verdict_the_page_says_so(judged: tuple[Path, Verdict], tmp_path: Path) -> None:
    folder, _ = judged
    path = write_report(folder, verdict=None, manifests={}, plan=None, out=tmp_path / "out")
    assert path.parent == tmp_path / "out"
    assert "No verdict yet" in path.read_text("utf-8")
    assert "No verdict yet" in (tmp_path / "out" / "report.md").read_text("utf-8")


def test_broken_samples_still_give_a_page(
    factory: Any, policy: Policy, judged: tuple[Path, Verdict]
) -> None:
    folder, _ = judged
    (folder / "samples/int8/long_generation.jsonl").unlink()
    verdict = decide(folder, policy, [])
    path = write_report(folder, verdict=verdict, manifests={}, plan=None)
    assert "are missing" in path.read_text("utf-8")


def test_markdown_has_the_same_numbers_without_texts(judged: tuple[Path, Verdict]) -> None:
    folder, verdict = judged
    _full(folder, verdict)
    text = (folder / "report.md").read_text("utf-8")
    assert verdict.decision in text
    assert "| short_qa.zh | int8 | exact_match | higher | 1.000 | 0.967 | -0.033 |" in text
    assert "<script" not in text
    assert "渡轮" not in text
    for line in text.splitlines():
        if line.startswith("| short_qa.zh | int8 |"):
            assert line.count(" | ") == 11


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_shows_the_verdict(judged: tuple[Path, Verdict], tmp_path: Path) -> None:
    folder, verdict = judged
    _full(folder, verdict)
    common = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu",
        "--disable-background-networking", f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1200,3000",
    ]  # fmt: skip
    address = (folder / "report.html").resolve().as_uri()
    picture = tmp_path / "page.png"
    subprocess.run(
        [*common, f"--screenshot={picture}", address], check=True, capture_output=True, timeout=120
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000
    shown = subprocess.run(
        [*common, "--dump-dom", address], check=True, capture_output=True, timeout=120
    ).stdout.decode()
    assert verdict.decision in " ".join(shown.split())
    assert "alert(1)" in shown
    assert "<script" not in shown
