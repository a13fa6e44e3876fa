"""What each process of a run does: `python -m qdeploy.train.worker RECIPE`.

Started by `qdeploy.train.launch`, or on several nodes by torch.distributed.run. Nothing is loaded
on GPUs before all ranks have read the same recipe, data and model and found them good.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdeploy.core.console import explain, say, warn
from qdeploy.core.errors import InputError, QdeployError, RunError
from qdeploy.core.units import format_bytes
from qdeploy.models.source import model_folder, read_config
from qdeploy.train import checkpoints
from qdeploy.train.arguments import (
    CHECKPOINTS,
    check_supported,
    sft_config,
    steps_of,
    uses_deepspeed,
)
from qdeploy.train.data import Prepared, prepare, run_tokenizer
from qdeploy.train.dry_run import DryRun, dry_run, with_processes
from qdeploy.train.fingerprint import model_digest, recipe_digest
from qdeploy.train.launch import environment
from qdeploy.train.output import REPORT, check_out, result_digest, save_result
from qdeploy.train.peft_config import lora_config
from qdeploy.train.ranks import Device, Rank, agree, join, leave, lost_a_rank, take_device
from qdeploy.train.recipe import Recipe, read_recipe
from qdeploy.train.request import CPU

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Ready:
    """Everything that is read before training begins."""

    planned: DryRun
    folder: Path
    device: Device
    tokenizer: PreTrainedTokenizerBase
    data: Prepared
    resume_from: Path | None

    @property
    def recipe(self) -> Recipe:
        """The recipe with strategy, offload and checkpointing filled in."""
        return self.planned.recipe

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """What a resumed run must have in common with this one."""
        return {
            "recipe": recipe_digest(self.recipe),
            "data": self.data.digest,
            "model": model_digest(self.folder),
        }


def main(arguments: list[str]) -> int:
    """Train; returns the exit code: 0 done, 1 failed while training, 2 never begun."""
    parser = argparse.ArgumentParser(prog="python -m qdeploy.train.worker")
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--nproc", type=int)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args(arguments)
    # Stdout is for results; libraries print there.
    sys.stdout = sys.stderr
    _quiet()
    rank = join()
    try:
        ready = _get_ready(given, rank)
    except QdeployError as error:
        return _fail(error, rank, speaks=rank.first)
    try:
        _train(ready, rank)
    except QdeployError as error:
        return _fail(error, rank, speaks=rank.fails_first())
    return 0


def _get_ready(given: argparse.Namespace, rank: Rank) -> Ready:
    """Read recipe, model and data on every rank, and compare. Raises QdeployError on all ranks."""
    ready, error, digests = None, None, {}
    try:
        recipe = with_processes(read_recipe(given.recipe), given.nproc)
        digests["recipe"] = recipe_digest(recipe)
        ready = _read(recipe, given, rank)
        digests |= ready.fingerprint
    except QdeployError as found:
        error = found
    agree(rank, error, digests)
    assert ready is not None
    return ready


def _read(recipe: Recipe, given: argparse.Namespace, rank: Rank) -> Ready:
    for name, value in environment(recipe).items():
        os.environ.setdefault(name, value)
    device = take_device(recipe, rank)
    planned = dry_run(recipe, given.recipe)
    check_supported(planned.recipe)
    check_out(planned.recipe, resume=given.resume)
    folder = model_folder(recipe.model)
    _check_positions(recipe, folder)
    tokenizer = run_tokenizer(recipe, folder)
    ready = Ready(planned, folder, device, tokenizer, prepare(recipe, tokenizer), None)
    if not given.resume:
        return ready
    found = checkpoints.latest(Path(recipe.out) / CHECKPOINTS)
    if found is None:
        if rank.first:
            say(f"no complete checkpoint in {recipe.out}: starting from the beginning")
        return ready
    path, checkpoint = found
    checkpoints.check_same_run(path, checkpoint, ready.fingerprint)
    if rank.first:
        say(f"going on from {path}")
    return replace(ready, resume_from=path)


def _check_positions(recipe: Recipe, folder: Path) -> None:
    most = read_config(folder).get("max_position_embeddings")
    if isinstance(most, int) and recipe.data.seq_len > most:
        raise InputError(
            f"data.seq_len {recipe.data.seq_len} is more than the {most} positions of {folder}",
            hint=f"set it to {most} or less",
        )


def _train(ready: Ready, rank: Rank) -> None:
    from qdeploy.train.out_of_memory import explained, is_out_of_memory

    if rank.first:
        _say_plan(ready.planned)
        _say_data(ready)
    try:
        trainer = _build(ready, rank)
        trainer.train(resume_from_checkpoint=str(ready.resume_from) if ready.resume_from else None)
        if trainer.eval_dataset is not None:
            trainer.evaluate()
        _finish(trainer, ready, rank)
    except QdeployError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise explained(error, ready.recipe, rank.rank) from error
        if lost_a_rank(error):
            raise RunError(f"rank {rank.rank} stops: another rank has gone") from error
        raise


def _build(ready: Ready, rank: Rank) -> Any:
    """The trainer, with the model loaded. The arguments come first: they switch ZeRO-3 on."""
    from qdeploy.train.callbacks import callbacks
    from qdeploy.train.callbacks.context import RunContext
    from qdeploy.train.model import load_model
    from qdeploy.train.trainer import Run, Trainer

    recipe = ready.recipe
    steps = steps_of(recipe, ready.data.counts.sequences)
    if uses_deepspeed(recipe):
        from deepspeed import init_distributed

        # DeepSpeed must know of the group before ZeRO-3 loads the model.
        init_distributed(verbose=False)
    arguments = sft_config(recipe, steps)
    context = RunContext(
        recipe=recipe,
        planned=ready.planned.candidate,
        capacity_bytes=ready.planned.capacity_bytes,
        out=Path(recipe.out),
        rank=rank.rank,
        world=rank.world,
        device=ready.device,
    )
    # Made before the model is loaded: what memory the process has by now is not the model's.
    watching = callbacks(context)
    model = load_model(recipe, ready.folder)
    if recipe.qat is not None:
        from qdeploy.train.qat import prepare as prepare_qat

        prepare_qat(model, recipe)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=ready.data.train,
        eval_dataset=ready.data.evaluation,
        processing_class=ready.tokenizer,
        peft_config=lora_config(recipe),
        callbacks=watching,
        run=Run(recipe, ready.fingerprint),
    )
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    return trainer


def _finish(trainer: Any, ready: Ready, rank: Rank) -> None:
    from qdeploy.train.report import collect

    if ready.recipe.qat is not None:
        from qdeploy.train.qat import finish as finish_qat

        finish_qat(trainer.model, ready.recipe)
    folder = save_result(trainer, ready.recipe)
    if rank.first:
        report = collect(
            Path(ready.recipe.out),
            planned=ready.planned.candidate,
            world=rank.world,
            inputs=ready.fingerprint,
            checkpoint_sha256=result_digest(folder),
        )
        report.write(Path(ready.recipe.out) / REPORT)
        say(f"written to {folder}")


def _say_plan(planned: DryRun) -> None:
    for warning in planned.warnings:
        warn(warning)
    if planned.fits is False:
        parts = planned.candidate.per_gpu
        on_cpu = planned.recipe.hardware.gpu == CPU
        need = format_bytes(parts.high_bytes if on_cpu else parts.need_bytes)
        change = "" if planned.suggestion is None else f"; {planned.suggestion}"
        warn(f"by the plan this does not fit: a process needs {need}{change}")


def _say_data(ready: Ready) -> None:
    counts = ready.data.counts
    packed = f" packed into {counts.sequences}" if ready.recipe.data.packing else ""
    say(
        f"data: {counts.samples} of {counts.rows} rows{packed}, {counts.tokens} tokens, "
        f"{counts.counted_tokens} of them in the loss; {counts.cut} cut at "
        f"{ready.recipe.data.seq_len} tokens, {counts.dropped} dropped for want of an answer"
    )


def _fail(error: QdeployError, rank: Rank, *, speaks: bool) -> int:
    """The exit code of `error`, which one rank says for all."""
    if not speaks:
        rank.wait_for_speaker()
        return error.exit_code
    explain(error.message, error.hint)
    rank.has_spoken()
    return error.exit_code


def _quiet() -> None:
    """Libraries speak of errors only; what they warn of is checked here."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("DS_LOG_LEVEL", "error")
    for name in ("torch.distributed", "accelerate", "trl"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)


def _end(code: int) -> None:
    """Leave at once after an error: other ranks may be waiting in a collective."""
    sys.stderr.flush()
    if code:
        os._exit(code)
    leave()


if __name__ == "__main__":
    _end(main(sys.argv[1:]))
