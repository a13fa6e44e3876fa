"""Starts the processes of a run on this node, and says how to start those of several nodes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from qdeploy.core.errors import InputError, RunError
from qdeploy.train import checkpoints
from qdeploy.train.arguments import CHECKPOINTS, uses_deepspeed
from qdeploy.train.dry_run import dry_run, launch_commands, with_processes
from qdeploy.train.recipe import Recipe, read_recipe
from qdeploy.train.request import CPU

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

_WORKER = "qdeploy.train.worker"
_OUT_OF_HOST_MEMORY = (
    "most often the kernel did it because the host's memory was used up (dmesg shows it)"
)


def run(path: Path, *, nproc: int | None = None, resume: bool = False) -> int:
    """Train the recipe at `path` on this node; returns the exit code of the ranks.

    The ranks write to stderr, and their errors there. Raises InputError for a recipe that is
    wrong, of several nodes, or for more GPUs than there are; RunError when a rank was killed.
    """
    recipe = with_processes(read_recipe(path), nproc)
    if recipe.hardware.nodes > 1:
        commands = "\n".join(launch_commands(recipe, path))
        raise InputError(
            f"the recipe is for {recipe.hardware.nodes} nodes; start it on each:\n{commands}",
            hint="qdeploy train RECIPE --dry-run also shows a hostfile and a SLURM script",
        )
    planned = dry_run(recipe, path).recipe
    _check_gpus(recipe)
    arguments = ["-m", _WORKER, str(path)]
    arguments += [] if nproc is None else ["--nproc", str(nproc)]
    arguments += ["--resume"] if resume else []
    os.environ.update({k: v for k, v in environment(recipe).items() if k not in os.environ})
    try:
        if recipe.world == 1 and not uses_deepspeed(planned):
            code = subprocess.run([sys.executable, *arguments], check=False).returncode
            return _exit_code(code, 0)
        return _launch(recipe, arguments)
    finally:
        checkpoints.discard_staging(Path(recipe.out) / CHECKPOINTS)


def environment(recipe: Recipe) -> dict[str, str]:
    """What the ranks find in their environment, unless it is set already."""
    if recipe.hardware.gpu == CPU:
        threads = max(1, (os.cpu_count() or 1) // recipe.hardware.gpus)
        # Without these glibc keeps much of what tensors have given back.
        malloc = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "0"}
        return {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": str(threads), **malloc}
    # Segments that grow leave less memory in pieces too small for the next tensor.
    return {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "OMP_NUM_THREADS": "1"}


def hostfile(recipe: Recipe) -> str:
    """A hostfile of DeepSpeed's launcher, with names to be replaced."""
    return "".join(
        f"node-{node} slots={recipe.hardware.gpus}\n" for node in range(recipe.hardware.nodes)
    )


def slurm_script(recipe: Recipe, path: Path) -> str:
    """An sbatch script: one launcher on each node, one rank on each of its GPUs."""
    hardware = recipe.hardware
    gpus = "" if hardware.gpu == CPU else f"#SBATCH --gpus-per-node={hardware.gpus}\n"
    exports = "".join(f"export {name}={value}\n" for name, value in environment(recipe).items())
    first = launch_commands(recipe, path)[0]
    command = first[first.index("torchrun") :].replace("--node_rank 0", "--node_rank $SLURM_NODEID")
    return (
        "#!/bin/bash\n"
        "#SBATCH --job-name=qdeploy-train\n"
        f"#SBATCH --nodes={hardware.nodes}\n"
        "#SBATCH --ntasks-per-node=1\n"
        f"{gpus}"
        "#SBATCH --exclusive\n\n"
        f"{exports}"
        'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        f"srun bash -c '{_in_single_quotes(command)}'\n"
    )


def _launch(recipe: Recipe, arguments: list[str]) -> int:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The ranks say what is wrong; the launcher's own report of it would only come on top.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=recipe.hardware.gpus,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=f"qdeploy-{os.getpid()}",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        return _first_exit_code(error)
    return 0


def _first_exit_code(error: ChildFailedError) -> int:
    """The exit code of the rank that began it.

    When one is killed the others fail in their next collective, often before the launcher looks;
    SIGTERM is what the launcher itself sends them.
    """
    for rank, failure in error.failures.items():
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
            return _exit_code(failure.exitcode, rank)
    rank, failure = error.get_first_failure()
    return _exit_code(failure.exitcode, rank)


def _exit_code(code: int, rank: int) -> int:
    """The exit code of a rank. Raises RunError when a signal ended it."""
    if code >= 0:
        return min(code, 2)
    cause = f"; {_OUT_OF_HOST_MEMORY}" if code == -signal.SIGKILL else ""
    raise RunError(
        f"rank {rank} was ended by signal {-code}{cause}",
        hint="go on from the last checkpoint with --resume",
    )


def _check_gpus(recipe: Recipe) -> None:
    if recipe.hardware.gpu == CPU:
        return
    from qdeploy.train.ranks import check_gpus

    check_gpus(recipe)


def _in_single_quotes(text: str) -> str:
    return text.replace("'", "'\\''")
