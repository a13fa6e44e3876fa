from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qdeploy.core.artifacts import read_artifact, sha256_file
from qdeploy.core.errors import InputError, RunError, UnknownNameError
from qdeploy.evals.limits import Limits
from qdeploy.evals.results import REPORT_NAME, EvalReport
from qdeploy.evals.run import CandidateLoader, run_eval
from qdeploy.evals.run_state import EvalOptions

from .fakes import CharTokenizer, FakeCandidate, qa_rows, write_suite

NO_SCREEN = EvalOptions(screen_tokens=0)


def right(prompt: str) -> str:
    """The code that the passage names."""
    return prompt.split(" is ")[1].split(".")[0]


def sometimes_wrong(prompt: str) -> str:
    return "nothing" if "box 3 " in prompt else right(prompt)


def loader(name: str, answer: Callable[[str], str] = right, **options: Any) -> CandidateLoader:
    options.setdefault("weights_digest", name)
    return CandidateLoader(name, lambda: FakeCandidate(name, answer, **options))  # type: ignore[arg-type, return-value]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return write_suite(tmp_path, {}, qa_rows(12) + qa_rows(6, "zh"))


def run(out: Path, suite: Path, *loaders: CandidateLoader, **options: Any) -> EvalReport:
    options.setdefault("screen_tokens", 0)
    return run_eval(list(loaders), [suite], out, EvalOptions(**options))


def codes(report: EvalReport) -> list[tuple[str, str | None, str]]:
    return [(f.level, f.candidate, f.code) for f in report.findings]


def test_a_whole_run(tmp_path: Path, suite: Path) -> None:
    out = tmp_path / "out"
    report = run(out, suite, loader("bf16"), loader("int8", sometimes_wrong))
    assert read_artifact(out / REPORT_NAME, EvalReport) == report
    assert report.baseline == "bf16"
    assert codes(report) == []
    english = next(c for c in report.classes if c.task_class == "qa.en")
    contains = english.metrics["int8"][0]
    assert (contains.n, contains.worse, contains.better) == (12, 1, 0)
    assert contains.difference == pytest.approx(-1 / 12)
    assert contains.noise == 0
    assert [c.task_class for c in report.classes] == ["qa.en", "qa.zh"]
    for name, digest in report.samples.items():
        assert sha256_file(out / name) == digest
    lines = (out / "samples/int8/qa.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 18
    assert json.loads(lines[3])["output"] == "nothing"


def test_a_killed_run_goes_on(tmp_path: Path, suite: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(out, suite, loader("bf16"), loader("int8", fail_after=5))
    assert len((out / "samples/int8/qa.jsonl").read_text(encoding="utf-8").splitlines()) == 5
    made: list[FakeCandidate] = []

    def keep() -> Any:
        made.append(FakeCandidate("int8", sometimes_wrong, weights_digest="int8"))
        return made[-1]

    report = run(out, suite, loader("bf16"), CandidateLoader("int8", keep))
    assert made[0].answered == 13
    assert report.candidates[1].generated_tokens > 0


def test_other_weights_never_get_old_answers(tmp_path: Path, suite: Path) -> None:
    out = tmp_path / "out"
    run(out, suite, loader("bf16"), loader("int8"))
    changed = loader("int8", sometimes_wrong, weights_digest="new")
    with pytest.raises(InputError, match="another run"):
        run(out, suite, loader("bf16"), changed)
    report = run(out, suite, loader("bf16"), changed, overwrite=True)
    assert report.classes[0].metrics["int8"][0].worse == 1


def test_same_weights_are_an_error(tmp_path: Path, suite: Path) -> None:
    report = run(tmp_path / "out", suite, loader("bf16"), loader("x", weights_digest="bf16"))
    assert codes(report) == [("error", "x", "same_weights")]


def test_a_manifest_that_does_not_match_is_a_warning(tmp_path: Path, suite: Path) -> None:
    report = run(tmp_path / "out", suite, loader("bf16"), loader("x", manifest_matches=False))
    assert codes(report) == [("warning", "x", "manifest_mismatch")]


def test_another_tokenizer_is_an_error(tmp_path: Path, suite: Path) -> None:
    other = loader("x", tokenizer=CharTokenizer(shift=3))
    report = run(tmp_path / "out", suite, loader("bf16"), other)
    assert ("error", "x", "prompt_mismatch") in codes(report)
    assert ("error", "x", "missing_samples") in codes(report)
    assert report.classes[0].metrics["x"] == []


def test_nan_of_a_candidate_is_an_error_of_the_report(tmp_path: Path, suite: Path) -> None:
    def broken(prompt: str) -> str:
        raise RunError("x: the model computes NaN or infinity")

    report = run(tmp_path / "out", suite, loader("bf16"), loader("x", broken))
    assert codes(report)[0] == ("error", "x", "not_finite")
    assert ("error", "x", "missing_samples") in codes(report)


def test_prompts_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    rows = qa_rows(6)
    rows[4]["context"] = "long " * 100
    suite = write_suite(tmp_path, {}, rows)
    report = run(
        tmp_path / "out", suite, loader("bf16", max_positions=100), loader("int8"), noise=()
    )
    assert (report.classes[0].n, report.classes[0].skipped) == (5, 1)
    assert codes(report) == [("warning", None, "skipped_items")]
    with pytest.raises(InputError, match="no prompt fits"):
        run(tmp_path / "none", suite, loader("bf16", max_positions=10), loader("int8"))


def test_the_limit_is_per_class(tmp_path: Path, suite: Path) -> None:
    report = run(tmp_path / "out", suite, loader("bf16"), loader("int8"), limits=Limits(4))
    assert [c.n for c in report.classes] == [4, 4]
    assert report.classes[0].metrics["int8"][0].clusters == 4


def test_equal_long_answers_are_a_warning(tmp_path: Path) -> None:
    rows = [
        {"id": f"l{i}", "lang": "en", "cluster": f"c{i}", "prompt": f"p{i} is x."} for i in range(4)
    ]
    spec = {
        "name": "long",
        "kind": "long_generation",
        "prompt": {"en": "{{ prompt }}"},
        "metrics": ["loop_free", "length_ratio"],
        "primary": "loop_free",
        "floor": 0.5,
    }
    suite = write_suite(tmp_path, spec, rows)
    report = run(tmp_path / "out", suite, loader("bf16"), loader("int8"))
    assert ("warning", "int8", "identical_outputs") in codes(report)
    assert report.classes[0].informative is False


def test_classification_by_likelihood(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"c{i}",
            "lang": "en",
            "cluster": f"k{i // 2}",
            "task": "t",
            "text": f"x{i}",
            "labels": ["good", "terrible"],
            "label": "good",
        }
        for i in range(8)
    ]
    spec = {
        "name": "cls",
        "kind": "classification",
        "prompt": {"en": "{{ text }}"},
        "metrics": ["accuracy", "label_margin"],
        "primary": "accuracy",
        "floor": "chance",
    }
    suite = write_suite(tmp_path, spec, rows)

    def nan_score(label: str) -> float:
        return float("nan")

    report = run(
        tmp_path / "out",
        suite,
        loader("bf16", label_score=lambda label: -1.0 if label == "good" else -16.0),
        loader("int8", label_score=nan_score),
    )
    result = report.classes[0]
    assert (result.floor, result.baseline_primary, result.informative) == (0.5, 1.0, True)
    assert ("error", "int8", "not_finite") in codes(report)
    assert ("error", "int8", "missing_samples") in codes(report)
    line = (tmp_path / "out/samples/bf16/cls.jsonl").read_text(encoding="utf-8").splitlines()[0]
    assert json.loads(line)["scores"]["label_margin"] == pytest.approx(-1 / 4 + 16 / 8)


@pytest.mark.parametrize(
    ("names", "suites", "message"),
    [(["a"], 1, "two candidates"), (["a", "a"], 1, "named twice: a"), (["a", "b"], 0, "no suite"),
     (["a", "b"], 2, "suite named twice: qa")],
)  # fmt: skip
def test_what_cannot_be_compared(
    tmp_path: Path, suite: Path, names: list[str], suites: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run_eval([loader(n) for n in names], [suite] * suites, tmp_path / "out", NO_SCREEN)


def test_the_noise_floor_of_some_suites(tmp_path: Path, suite: Path) -> None:
    without = run(tmp_path / "out", suite, loader("bf16"), loader("int8"), noise=())
    assert without.classes[0].metrics["int8"][0].noise is None
    assert without.decoding["noise"] == "not measured"
    with pytest.raises(UnknownNameError, match="'short_aq'"):
        run(tmp_path / "other", suite, loader("bf16"), loader("int8"), noise=("short_aq",))
