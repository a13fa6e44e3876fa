"""What the training callbacks cost: the same TRL run with and without them, in turns.

    python benchmarks/callback_overhead.py [MODEL] [--tokens N] [--steps N]

One process and one thread in FP32, a new trainer for each turn. A step's time runs from its
beginning to that of the next one, so everything that a callback does is in it. It is the time of
the processor, which other work on the machine does not lengthen; nothing in the callbacks waits.
The first step of a turn makes the optimizer's states and is left out. On a busy machine the cost in
milliseconds is found best with a small model and many steps.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from machine import describe
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from qdeploy.cli.demo_model import demo_model
from qdeploy.core.schema import validate
from qdeploy.train.callbacks import RunContext, callbacks
from qdeploy.train.dry_run import dry_run
from qdeploy.train.recipe import Recipe

TURNS, ACCUMULATION = 4, 2


class Stopwatch(TrainerCallback):
    """Times of the steps, in seconds of the processor."""

    def __init__(self) -> None:
        self._began: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note when a step begins."""
        self._began.append(time.process_time())

    def seconds(self) -> list[float]:
        """All steps but the first and the last."""
        return [later - began for began, later in pairwise(self._began[1:])]


def context_of(model: Path, tokens: int, out: Path) -> RunContext:
    """The run as the callbacks see it."""
    data = {
        "model": str(model), "data": {"path": "random tokens", "seq_len": tokens},
        "hardware": {"gpu": "cpu"}, "precision": "fp32", "out": str(out),
        "strategy": {"name": "none", "offload": "none"}, "checkpointing": {"enabled": False},
    }  # fmt: skip
    made = dry_run(validate(Recipe, data, "recipe"))
    return RunContext(made.recipe, made.candidate, None, out, 0, 1, "cpu")


def train(model: Path, rows: Dataset, out: Path, context: RunContext | None) -> list[float]:
    """The times of the steps of one turn."""
    watch = Stopwatch()
    watching = [] if context is None else callbacks(context)
    arguments = SFTConfig(
        output_dir=str(out), max_steps=len(rows) // ACCUMULATION, per_device_train_batch_size=1,
        gradient_accumulation_steps=ACCUMULATION, use_cpu=True, bf16=False, report_to=[],
        save_strategy="no", logging_steps=1, disable_tqdm=True, dataloader_pin_memory=False,
        dataset_kwargs={"skip_prepare_dataset": True}, activation_checkpointing=False,
    )  # fmt: skip
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        args=arguments,
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(model),
        callbacks=[watch, *watching],
    )
    trainer.train()
    return watch.seconds()


def main() -> None:
    """Print the ratio of the median times, and of the medians of each pair of turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    model = (options.model or demo_model()).resolve()
    torch.set_num_threads(1)
    print(describe())
    words = AutoConfig.from_pretrained(model).vocab_size
    generator = torch.Generator().manual_seed(0)
    rows = options.steps * ACCUMULATION
    ids = torch.randint(100, words, (rows, options.tokens), generator=generator).tolist()
    data = Dataset.from_dict({"input_ids": ids, "labels": ids})
    ours: list[float] = []
    plain: list[float] = []
    pairs = []
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(TURNS):
            out = Path(scratch) / str(turn)
            context = context_of(model, options.tokens, out)
            first = train(model, data, out, None)
            second = train(model, data, out, context)
            pairs.append(statistics.median(second) / statistics.median(first))
            plain += first
            ours += second
    without, with_all = statistics.median(plain), statistics.median(ours)
    print(
        f"median step {1e3 * without:.1f} ms without, {1e3 * with_all:.1f} ms with the callbacks: "
        f"{1e3 * (with_all - without):+.1f} ms, {with_all / without - 1:+.1%}; turns: "
        + ", ".join(f"{pair - 1:+.1%}" for pair in pairs)
    )


if __name__ == "__main__":
    main()
