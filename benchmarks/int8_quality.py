"""Divergence of INT8 builds from BF16 on text that calibration has not seen.

    python benchmarks/int8_quality.py [MODEL]

Text: the passages of the shipped short_qa suite (English and Chinese), which share nothing with
the calibration set. For each scheme: KL(BF16 || INT8) in nats per token, top-1 agreement, and the
largest error of a decoder block and of a linear layer on the same input.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import json
import sys
import tempfile
from pathlib import Path

import torch
from machine import describe

from qdeploy.calib.batches import calibration_set
from qdeploy.calib.template import load_tokenizer
from qdeploy.cli.demo_model import demo_model
from qdeploy.core.scheme import load_scheme
from qdeploy.core.shipped import shipped
from qdeploy.evals.screen import kl_divergence
from qdeploy.quant.engine import quantize
from qdeploy.runtime.blocks import block_errors
from qdeploy.runtime.load import load_candidate

TOKENS, WINDOW = 2048, 512
SCHEMES = {"int8-rtn": 4, "int8": 16}
"""Scheme -> calibration samples."""


def _windows(model: Path, lang: str) -> list[list[int]]:
    lines = shipped("evals/short_qa.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    passages = dict.fromkeys(row["context"] for row in rows if row["lang"] == lang)
    ids = load_tokenizer(model)("\n\n".join(passages), add_special_tokens=False)["input_ids"]
    return [ids[at : at + WINDOW] for at in range(0, min(TOKENS, len(ids)), WINDOW)]


def main() -> None:
    """Print one line for each scheme and language."""
    print(describe())
    model = Path(sys.argv[1]) if len(sys.argv) > 1 else demo_model()
    texts = {lang: _windows(model, lang) for lang in ("en", "zh")}
    baseline = load_candidate("bf16", model, "bf16")
    expected = {lang: [baseline.log_probs(w) for w in found] for lang, found in texts.items()}
    for scheme, samples in SCHEMES.items():
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / "int8"
            calibration = calibration_set(shipped("calib"), load_tokenizer(model), samples=samples)
            quantize(model, calibration, load_scheme(scheme), out)
            candidate = load_candidate(scheme, out, None)
            errors = block_errors(baseline.model, candidate.model, torch.tensor(texts["en"][:1]))
            for lang, found in texts.items():
                logs = [candidate.log_probs(window) for window in found]
                pairs = list(zip(expected[lang], logs, strict=True))
                kl = torch.cat([kl_divergence(a, b) for a, b in pairs]).mean()
                top1 = torch.cat([a.argmax(-1) == b.argmax(-1) for a, b in pairs]).double().mean()
                print(f"{scheme} {lang}: KL {kl:.4f}, top-1 {top1:.3f}")
            worst = max(errors.layers, key=errors.layers.__getitem__)
            print(
                f"{scheme}: largest block error {max(errors.blocks):.4f}, "
                f"largest layer error {errors.layers[worst]:.4f} ({worst})"
            )


if __name__ == "__main__":
    main()
