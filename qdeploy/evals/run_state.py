"""What a run of `run_eval` has gathered so far, and what its samples depend on."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import torch

from qdeploy.core.artifacts import sha256_files
from qdeploy.core.console import warn
from qdeploy.evals.limits import Limits
from qdeploy.evals.prepare import Prepared
from qdeploy.evals.results import CandidateInfo, Finding, Sample, ScreenResult
from qdeploy.runtime.candidate import Candidate
from qdeploy.runtime.model import DEFAULT_BATCH_TOKENS


@dataclass(frozen=True)
class EvalOptions:
    """How much is measured."""

    limits: Limits = field(default_factory=Limits)
    """Items of each task class at most."""
    max_new_tokens: int | None = None
    """Caps what the suites allow; None: as they say."""
    seed: int = 0
    """Of the draw that `limits` makes."""
    noise: tuple[str, ...] | None = None
    """Suites of which the baseline answers some items again, see `prepare.noise_prompts`; None:
    all of them."""
    screen_tokens: int = 1024
    """Tokens of the teacher-forced screen; 0: no screen."""
    overwrite: bool = False
    """Start over where the output folder holds another run's samples."""
    batch_tokens: int = DEFAULT_BATCH_TOKENS


@dataclass
class State:
    """The run so far. Samples are kept by 'SUITE/ID'."""

    out: Path
    options: EvalOptions
    prepared: list[Prepared] = field(default_factory=list)
    infos: list[CandidateInfo] = field(default_factory=list)
    """Of the candidates that ran, the baseline first."""
    samples: dict[str, dict[str, Sample]] = field(default_factory=dict)
    """Candidate -> samples."""
    noise: dict[str, Sample] = field(default_factory=dict)
    screens: list[ScreenResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    """Relative path of each samples file -> sha256."""
    bos: str = ""

    def find(
        self, level: Literal["error", "warning"], candidate: str | None, code: str, message: str
    ) -> None:
        """Note a finding, and say it at once."""
        self.findings.append(Finding(level=level, candidate=candidate, code=code, message=message))
        warn(f"{candidate or 'evaluation'}: {message}")

    @property
    def baseline(self) -> dict[str, Sample]:
        """The baseline's samples; empty until it has run."""
        return self.samples[self.infos[0].name] if self.infos else {}

    def key(self, model: Candidate, prepared: Prepared) -> dict[str, str]:
        """All that the samples of one candidate and suite depend on."""
        return {
            "weights": model.weights_digest,
            "format": model.format,
            "runtime": model.runtime,
            "baseline weights": self.infos[0].weights_digest if self.infos else "",
            "suite": prepared.suite.digest,
            "prompts": prepared.digest,
            "limits": " ".join(self.options.limits.words()),
            "max_new_tokens": str(prepared.suite.spec.decoding.max_new_tokens),
            "seed": str(self.options.seed),
            "batch_tokens": str(self.options.batch_tokens),
            "code": _code_digest(),
            "versions": f"torch {torch.__version__}, transformers {version('transformers')}",
        }


def of_suite(samples: dict[str, Sample], suite: str) -> dict[str, Sample]:
    """The samples of one suite, by item id."""
    prefix = f"{suite}/"
    return {
        name.removeprefix(prefix): sample
        for name, sample in samples.items()
        if name.startswith(prefix)
    }


@cache
def _code_digest() -> str:
    """sha256 of the code that makes answers and scores, as it was when the run began."""
    package = Path(__file__).resolve().parents[1]
    found = [file for part in ("evals", "runtime") for file in (package / part).rglob("*.py")]
    found.append(package / "core" / "affine.py")
    return sha256_files(package, [str(file.relative_to(package)) for file in found])
