"""Speed of an INT8 candidate over its BF16 baseline, measured in turns in one run.

    python benchmarks/int8_runtime.py [MODEL] [INT8]

Without arguments: the demo's model, quantized by plain rounding into a temporary folder.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from machine import describe

from qdeploy.calib.batches import calibration_set
from qdeploy.calib.template import load_tokenizer
from qdeploy.cli.demo_model import demo_model
from qdeploy.core.scheme import load_scheme
from qdeploy.core.shipped import shipped
from qdeploy.quant.engine import quantize
from qdeploy.runtime.candidate import Candidate
from qdeploy.runtime.load import load_candidate

PROMPT_TOKENS, NEW_TOKENS, TURNS = 64, 32, 3


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _generate(candidate: Candidate, rows: int) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(100, 5000, (rows, PROMPT_TOKENS), generator=generator).tolist()

    def run() -> None:
        candidate.generate(prompts, max_new_tokens=NEW_TOKENS, stop=[], on_done=lambda *_: None)

    return run


def _read(candidate: Candidate) -> Callable[[], object]:
    ids = torch.randint(100, 5000, (512,), generator=torch.Generator().manual_seed(0)).tolist()
    return lambda: candidate.log_probs(ids)


def main() -> None:
    """Print the median ratio of the two candidates' times for each kind of work."""
    print(describe())
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(sys.argv[1]) if len(sys.argv) > 1 else demo_model()
        int8 = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(scratch) / "int8"
        if not int8.exists():
            calibration = calibration_set(shipped("calib"), load_tokenizer(model), samples=4)
            quantize(model, calibration, load_scheme("int8-rtn"), int8)
        pair = (load_candidate("bf16", model, "bf16"), load_candidate("int8", int8, None))
        print(*(f"{candidate.name}: {candidate.runtime}" for candidate in pair), sep="\n")
        works = {f"generate, {n} rows": [_generate(c, n) for c in pair] for n in (1, 8, 64)}
        works["read 512 tokens"] = [_read(c) for c in pair]
        for name, (ours, theirs) in works.items():
            ours(), theirs()
            turns = [(_seconds(ours), _seconds(theirs)) for _ in range(TURNS)]
            ratio = statistics.median(base / other for base, other in turns)
            print(f"{name}: INT8 runs at {ratio:.2f} times the baseline's speed")


if __name__ == "__main__":
    main()
