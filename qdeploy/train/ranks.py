"""The processes of a run: who they are, and what all of them must agree on before training."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Literal, Protocol, cast

import torch
import torch.distributed
from torch.distributed.rendezvous import rendezvous

from qdeploy.core.errors import InputError, QdeployError, RunError
from qdeploy.train.recipe import Recipe
from qdeploy.train.request import CPU

Device = Literal["cuda", "cpu"]

_SPEAKING_SECONDS = 10.0


class Counter(Protocol):
    """The part of torch's Store that is used here."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to the number under `key`; returns the sum."""


@dataclass(frozen=True)
class Rank:
    """One process."""

    rank: int
    world: int
    local_rank: int
    store: Counter | None = field(default=None, compare=False)
    """What all ranks can write to, outside collectives; None where there is one process."""

    @property
    def first(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.rank == 0

    def fails_first(self) -> bool:
        """Whether no other rank has failed before; to be asked once, by a rank that fails.

        The others fail in their next collective: one error is enough to read.
        """
        return self.store is None or self.store.add("failed", 1) == 1

    def has_spoken(self) -> None:
        """The error is said: the others may go."""
        if self.store is not None:
            self.store.add("said", 1)

    def wait_for_speaker(self) -> None:
        """Stay until another rank has said the error: the launcher ends all when one leaves."""
        end = time.monotonic() + _SPEAKING_SECONDS
        while self.store is not None and not self.store.add("said", 0) and time.monotonic() < end:
            time.sleep(0.05)


def join() -> Rank:
    """This process, in one group with the others that torch.distributed.run started.

    Before anything is read, so that all can agree on what they read; and before the trainer, since
    ZeRO-3 needs the group to load the model.
    """
    if "MASTER_ADDR" not in os.environ:
        return Rank(0, 1, 0)
    store, rank, world = next(rendezvous("env://"))
    torch.distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        store=store,
        rank=rank,
        world_size=world,
    )
    return Rank(rank, world, int(os.environ["LOCAL_RANK"]), store)


def leave() -> None:
    """Take down the process group, if there is one."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def lost_a_rank(error: Exception) -> bool:
    """Whether `error` says that another rank has gone, which is then what went wrong."""
    if isinstance(error, torch.distributed.DistBackendError):
        return True
    return isinstance(error, RuntimeError) and "gloo/transport" in str(error)


def take_device(recipe: Recipe, rank: Rank) -> Device:
    """Where this rank computes; its GPU is chosen.

    Raises InputError when there are more or fewer processes than the recipe is for, for a GPU that
    is not there, and for BF16 on one without it.
    """
    if rank.world != recipe.world:
        raise InputError(
            f"the recipe is for {recipe.world} processes, {rank.world} were started",
            hint="start it with `qdeploy train`, or with the commands of --dry-run",
        )
    if recipe.hardware.gpu == CPU:
        return "cpu"
    check_gpus(recipe)
    torch.cuda.set_device(rank.local_rank)
    if recipe.precision.startswith("bf16") and not torch.cuda.is_bf16_supported(
        including_emulation=False
    ):
        name = torch.cuda.get_device_name()
        major, minor = torch.cuda.get_device_capability()
        raise InputError(
            f"precision: {recipe.precision}, but {name} has no BF16 (compute capability "
            f"{major}.{minor}, 8.0 is needed)",
            hint="write precision: fp16 (Adam eps 1e-6 and loss scaling come with it), as "
            "recipes/7b-fp16-zero2-8gpu-v100.yaml does",
        )
    return "cuda"


def check_gpus(recipe: Recipe) -> None:
    """Raise InputError when a recipe is for more GPUs than this node has."""
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if recipe.hardware.gpu != CPU and recipe.hardware.gpus > found:
        raise InputError(
            f"the recipe is for {recipe.hardware.gpus} GPUs a node, this machine has {found}",
            hint="start with --nproc, plan again with train-plan --gpus, or use hardware.gpu: cpu",
        )


def agree(rank: Rank, error: QdeployError | None, digests: dict[str, str]) -> None:
    """Raise on every rank the first error of any, or one for digests that are not the same.

    Without this a rank that stops alone would leave the others waiting for it.
    """
    if not torch.distributed.is_initialized():
        if error is not None:
            raise error
        return
    mine = None if error is None else (error.message, error.hint, error.exit_code)
    gathered: list[object] = [None] * rank.world
    torch.distributed.all_gather_object(gathered, (mine, digests))
    found = cast("list[tuple[tuple[str, str | None, int] | None, dict[str, str]]]", gathered)
    for other, (problem, _) in enumerate(found):
        if problem is not None:
            message, hint, code = problem
            kind = InputError if code == InputError.exit_code else RunError
            raise kind(f"rank {other}: {message}" if other else message, hint=hint)
    for other, (_, theirs) in enumerate(found):
        differ = [name for name, value in found[0][1].items() if theirs.get(name) != value]
        if differ:
            raise InputError(
                f"rank {other} has another {' and '.join(differ)} than rank 0",
                hint="all ranks must see the same recipe, data and model",
            )
