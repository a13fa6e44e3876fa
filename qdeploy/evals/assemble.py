"""From what a run gathered to `eval_report.json`."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version

import torch

from qdeploy import __version__
from qdeploy.evals.compare import compare_class
from qdeploy.evals.prepare import NOISE_IN_WORDS
from qdeploy.evals.results import ClassResult, EvalReport
from qdeploy.evals.run_state import State, of_suite


def assemble(state: State, model: str, seconds: float) -> EvalReport:
    """The report of a run: `model` as given, `seconds` of wall time."""
    baseline = state.infos[0].name
    classes: list[ClassResult] = []
    others = [info.name for info in state.infos[1:]]
    for prepared in state.prepared:
        suite = prepared.suite.spec.name
        mine = {name: of_suite(found, suite) for name, found in state.samples.items()}
        for task in prepared.task_classes():
            result, findings = compare_class(
                task,
                mine[baseline],
                {name: mine.get(name, {}) for name in others},
                of_suite(state.noise, suite),
            )
            classes += [result] if result else []
            for finding in findings:
                state.find(finding.level, finding.candidate, finding.code, finding.message)
    _find_identical(state, others)
    return EvalReport(
        inputs={f"weights/{info.name}": info.weights_digest for info in state.infos}
        | {f"suite/{found.suite.spec.name}": found.suite.digest for found in state.prepared},
        model=model,
        baseline=baseline,
        candidates=state.infos,
        suites={found.suite.spec.name: found.suite.digest for found in state.prepared},
        decoding=_decoding(state),
        seed=state.options.seed,
        classes=classes,
        screens=state.screens,
        findings=state.findings,
        samples=state.files,
        versions=_versions(),
        machine=f"{platform.machine()}, {os.cpu_count()} CPUs, {torch.get_num_threads()} threads",
        wall_seconds=seconds,
    )


def _find_identical(state: State, others: list[str]) -> None:
    """Warn where a candidate's long answers are all the baseline's: is it really another model?"""
    long = [p.suite.spec.name for p in state.prepared if p.suite.spec.kind == "long_generation"]
    for name in others:
        theirs = state.samples.get(name, {})
        pairs = [
            (state.baseline[item].output, sample.output)
            for item, sample in theirs.items()
            if item.split("/")[0] in long and item in state.baseline
        ]
        if pairs and all(ours == other for ours, other in pairs):
            message = f"all {len(pairs)} long answers equal the baseline's, letter for letter"
            state.find("warning", name, "identical_outputs", message)


def _decoding(state: State) -> dict[str, str]:
    decoding = {"method": "greedy", "begin": state.bos, "thinking": "off"}
    decoding["limit"] = " ".join(state.options.limits.words()) or "none"
    cap = state.options.max_new_tokens
    decoding["cap"] = "none" if cap is None else str(cap)
    decoding["batch_tokens"] = str(state.options.batch_tokens)
    noise = state.options.noise
    decoding["noise"] = "not measured" if noise == () else NOISE_IN_WORDS
    if noise:
        decoding["noise"] += f"; of {', '.join(noise)} only"
    for found in state.prepared:
        spec = found.suite.spec
        decoding[f"{spec.name}.max_new_tokens"] = str(spec.decoding.max_new_tokens)
        decoding[f"{spec.name}.stop"] = json.dumps(spec.decoding.stop, ensure_ascii=False)
    return decoding


def _versions() -> dict[str, str]:
    packages = ("torch", "transformers", "tokenizers", "numpy", "scipy", "safetensors")
    found = {name: version(name) for name in packages}
    return {"python": platform.python_version(), "qdeploy": __version__, **found}
