"""One rank of a run of `training_memory.py`: trains two steps and counts what the engine holds.

    torchrun --nproc_per_node 2 benchmarks/training_memory_rank.py RECIPE

Weights, masters and states are counted after the second step, gradients when the second step
begins and again when the inner optimizer steps: every tensor that Python knows, by its storage.
Writes `held-RANK.json` into the recipe's `out`.
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback

from qdeploy.train.arguments import sft_config, steps_of, uses_deepspeed
from qdeploy.train.callbacks import RunContext, callbacks
from qdeploy.train.dry_run import dry_run
from qdeploy.train.model import load_model
from qdeploy.train.peft_config import lora_config
from qdeploy.train.ranks import Rank, join, leave, take_device
from qdeploy.train.recipe import Recipe, read_recipe
from qdeploy.train.trainer import Run, Trainer

_LEAST_BYTES = 4096
"""Smaller tensors (step counters, norms, the batch) are no states."""


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Address -> bytes of the storages of `tensors`, each once."""
    found = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            found[storage.data_ptr()] = storage.nbytes()
    return found


def alive() -> dict[int, int]:
    """The storages of all tensors that Python knows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = [item for item in gc.get_objects() if isinstance(item, torch.Tensor)]
    known += [item.grad for item in known if item.is_leaf and item.grad is not None]
    return storages(known)


class Count(TrainerCallback):
    """Counts the tensors of the last step."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self._model: torch.nn.Module
        self._outer: Any
        self._inner: torch.optim.Optimizer
        self._armed = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the engine's optimizer and the one inside it."""
        self._model = kwargs["model"]
        outer = kwargs["optimizer"].optimizer
        self._outer, self._inner = outer, getattr(outer, "optimizer", outer)
        engine_step = outer.step

        def step(*arguments: Any, **named: Any) -> Any:
            if self._armed:
                self.held["gradients_bytes"] = self._rest()
            return engine_step(*arguments, **named)

        if outer is not self._inner:
            outer.step = step
        self._inner.register_step_pre_hook(self._before_inner)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count the last step only: the first one makes the states."""
        self._armed = state.global_step + 1 == state.max_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count what stays."""
        if not self._armed:
            return
        self._armed = False
        for kind, found in self._kinds().items():
            self.held[f"{kind}_bytes"] = sum(found.values())
        self.held["rest_after_bytes"] = self._rest()

    def _before_inner(self, *_: Any) -> None:
        if self._armed:
            self.held["at_step_bytes"] = max(self._rest(), self.held.get("at_step_bytes", 0))
            self.held.setdefault("gradients_bytes", self.held["at_step_bytes"])

    def _kinds(self) -> dict[str, dict[int, int]]:
        parameters = list(self._model.parameters())
        weights = storages(getattr(p, "ds_tensor", p) for p in parameters)
        gathered = storages(p.data for p in parameters)
        # ZeRO-3 lends its masters to the inner optimizer for the length of the step.
        own = getattr(self._outer, "fp32_partitioned_groups_flat", [])
        lent = [p for group in self._inner.param_groups for p in group["params"]]
        masters = storages([*own, *lent])
        states = storages(
            value
            for state in self._inner.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor) and value.dim() > 0
        )
        return {
            "weights": weights,
            "master_weights": _without(masters, weights, gathered),
            "optimizer": _without(states, weights, masters),
            "persistent": _without(gathered, weights),
        }

    def _rest(self) -> int:
        kinds = list(self._kinds().values())
        rest = _without(alive(), *kinds, storages(self._model.buffers()))
        return sum(size for size in rest.values() if size >= _LEAST_BYTES)


def _without(storage: dict[int, int], *others: dict[int, int]) -> dict[int, int]:
    known = {address for other in others for address in other}
    return {address: size for address, size in storage.items() if address not in known}


def _data(recipe: Recipe, folder: Path) -> Dataset:
    """Full sequences of random tokens, enough for every step."""
    words = json.loads((folder / "config.json").read_text())["vocab_size"]
    generator = torch.Generator().manual_seed(recipe.seed)
    rows = recipe.global_batch * (recipe.steps or 1)
    ids = torch.randint(3, words, (rows, recipe.data.seq_len), generator=generator).tolist()
    return Dataset.from_dict({"input_ids": ids, "labels": ids})


def _train(recipe: Recipe, rank: Rank) -> dict[str, int]:
    device = take_device(recipe, rank)
    planned = dry_run(recipe)
    recipe, folder = planned.recipe, Path(recipe.model)
    rows = _data(recipe, folder)
    arguments = sft_config(recipe, steps_of(recipe, len(rows)))
    arguments.save_strategy = "no"
    if uses_deepspeed(recipe):
        # ZeRO-3 needs to know the ranks while the model is loaded.
        from deepspeed import init_distributed

        init_distributed(verbose=False)
    context = RunContext(
        recipe=recipe,
        planned=planned.candidate,
        capacity_bytes=planned.capacity_bytes,
        out=Path(recipe.out),
        rank=rank.rank,
        world=rank.world,
        device=device,
    )
    count = Count()
    watching = [*callbacks(context), count]
    trainer = Trainer(
        model=load_model(recipe, folder),
        args=arguments,
        train_dataset=rows,
        peft_config=lora_config(recipe),
        callbacks=watching,
        run=Run(recipe, {}),
    )
    trainer.train()
    return count.held


def main() -> None:
    """Train by the recipe of the command line."""
    rank, recipe = join(), read_recipe(Path(sys.argv[1]))
    held = _train(recipe, rank)
    out = Path(recipe.out) / f"held-{rank.rank}.json"
    out.write_text(json.dumps(held), encoding="utf-8")
    leave()


if __name__ == "__main__":
    main()
