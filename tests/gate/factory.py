"""Synthetic evaluations as `qdeploy eval` writes them, small and without a model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qdeploy.core.artifacts import sha256_file, sha256_text
from qdeploy.evals.compare import TaskClass, compare_class
from qdeploy.evals.results import (
    REPORT_NAME,
    CandidateInfo,
    EvalReport,
    Finding,
    Sample,
    ScreenResult,
)

METRICS = {
    "short_qa": ["exact_match", "char_f1", "contains"],
    "long_generation": ["loop_free", "structure"],
}
TEXTS = {
    "en": ("Which day does the ferry not sail?", "Wednesday"),
    "zh": ("渡轮哪一天不开?", "星期三"),
}


@dataclass
class Items:
    """One task class: how many items, and the scores of each side by item number."""

    suite: str
    lang: str
    n: int = 60
    scores: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)
    """Candidate -> item -> scores that differ from 1.0 on every metric."""
    outputs: dict[str, dict[int, str]] = field(default_factory=dict)
    cluster_size: int = 2

    @property
    def name(self) -> str:
        return f"{self.suite}.{self.lang}"


def info(name: str, **changes: Any) -> CandidateInfo:
    """A candidate; 'bf16' weighs twice as much as any other."""
    values: dict[str, Any] = {
        "name": name,
        "source": f"models/{name}",
        "format": "bf16" if name == "bf16" else "compressed-tensors/int-quantized",
        "weights_digest": sha256_text(name),
        "weights_bytes": 2_000_000 if name == "bf16" else 1_000_000 + len(name),
        "runtime": "float32 arithmetic on BF16 weights" if name == "bf16" else "int8 x int8",
        "seconds": 12.5,
        "generated_tokens": 4321,
    }
    return CandidateInfo(**{**values, **changes})


def screen(name: str, **changes: Any) -> ScreenResult:
    """A screen that a good INT8 file shows."""
    values: dict[str, Any] = {
        "candidate": name,
        "tokens": 1024,
        "kl_mean": 0.01,
        "kl_p99": 0.2,
        "top1_agreement": 0.95,
        "block_errors": [0.002, 0.004, 0.003, 0.006],
        "layer_errors": {"0.self_attn.q_proj": 0.001, "2.mlp.down_proj": 0.008},
    }
    return ScreenResult(**{**values, **changes})


def sample(items: Items, candidate: str, at: int) -> Sample:
    """Item `at` of a task class as `candidate` answered it."""
    question, answer = TEXTS[items.lang]
    scores = dict.fromkeys(METRICS[items.suite], 1.0)
    scores |= items.scores.get(candidate, {}).get(at, {})
    looping = scores.get("loop_free") == 0
    return Sample(
        id=f"{items.suite}-{items.lang}-{at:03d}",
        task_class=items.name,
        lang=items.lang,
        cluster=f"c{at // items.cluster_size}",
        prompt_hash=sha256_text(f"{items.name} {at}"),
        prompt_tokens=40 + at,
        prompt=f"{question} ({at})",
        reference=answer,
        output=items.outputs.get(candidate, {}).get(at, answer),
        finish_reason="length" if looping else "stop",
        output_tokens=256 if looping else 12,
        flags=["cut"] if looping else [],
        scores=scores,
        loop_onset=30 + at if looping else None,
    )


def write_evaluation(
    folder: Path,
    classes: list[Items],
    candidates: list[CandidateInfo],
    *,
    screens: list[ScreenResult] | None = None,
    findings: list[Finding] | None = None,
    floor: float = 0.1,
) -> Path:
    """Write samples and eval_report.json; the first candidate is the baseline. Returns `folder`."""
    names = [candidate.name for candidate in candidates]
    files, results = {}, []
    for suite in dict.fromkeys(items.suite for items in classes):
        for name in names:
            relative = f"samples/{name}/{suite}.jsonl"
            lines = [
                json.dumps(sample(items, name, at).model_dump(mode="json"), ensure_ascii=False)
                for items in classes
                if items.suite == suite
                for at in range(items.n)
            ]
            path = folder / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            files[relative] = sha256_file(path)
    for items in classes:
        by_name = {
            name: {s.id: s for s in (sample(items, name, at) for at in range(items.n))}
            for name in names
        }
        task = TaskClass(
            name=items.name,
            suite=items.suite,
            kind=items.suite,
            lang=items.lang,
            item_ids=tuple(by_name[names[0]]),
            skipped=0,
            metrics=tuple(METRICS[items.suite]),
            primary=METRICS[items.suite][0],
            floor=floor,
        )
        result, _ = compare_class(
            task, by_name[names[0]], {name: by_name[name] for name in names[1:]}, {}
        )
        results += [result] if result else []
    EvalReport(
        model="models/demo",
        baseline=names[0],
        candidates=candidates,
        suites={items.suite: sha256_text(items.suite) for items in classes},
        decoding={"method": "greedy"},
        seed=0,
        classes=results,
        screens=[screen(name) for name in names[1:]] if screens is None else screens,
        findings=findings or [],
        samples=files,
        versions={"python": "3.11", "qdeploy": "0.1.0"},
        machine="x86_64, 2 CPUs",
        wall_seconds=75.0,
    ).write(folder / REPORT_NAME)
    return folder


def reseal(folder: Path, relative: str) -> None:
    """Put the sha256 of a samples file that was changed into the report."""
    path = folder / REPORT_NAME
    report = json.loads(path.read_text(encoding="utf-8"))
    report["samples"][relative] = sha256_file(folder / relative)
    path.write_text(json.dumps(report, ensure_ascii=False), encoding="utf-8")


def worse(metric: str, items: range, value: float = 0.0) -> dict[int, dict[str, float]]:
    """Scores of one metric for some items."""
    return {at: {metric: value} for at in items}
