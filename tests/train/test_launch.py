from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qdeploy.core.errors import InputError
from qdeploy.core.schema import validate
from qdeploy.train.dry_run import dry_run, with_processes
from qdeploy.train.launch import environment, hostfile, run, slurm_script
from qdeploy.train.recipe import Recipe
from qdeploy.train.render import render_dry_run

TWO_NODES = {
    "model": "Qwen/Qwen2.5-0.5B", "data": {"path": "d"},
    "hardware": {"gpu": "A100-80GB", "gpus": 8, "nodes": 2},
    "strategy": {"name": "zero2", "offload": "none"},
}  # fmt: skip


def test_hostfile() -> None:
    recipe = validate(Recipe, TWO_NODES, "recipe")
    assert hostfile(recipe) == "node-0 slots=8\nnode-1 slots=8\n"


def test_slurm_script_is_a_shell_script(tmp_path: Path) -> None:
    recipe = validate(Recipe, TWO_NODES, "recipe")
    text = slurm_script(recipe, Path("it's a recipe.yaml"))
    assert "#SBATCH --nodes=2\n" in text
    assert "#SBATCH --gpus-per-node=8\n" in text
    assert "export PYTORCH_ALLOC_CONF=expandable_segments:True\n" in text
    assert "--node_rank $SLURM_NODEID" in text
    stub = 'scontrol() { echo first; echo second; }\nsrun() { SLURM_NODEID=1 "$@"; }\n'
    record = 'torchrun() { printf "%s\\n" "$@"; }\nexport -f torchrun\n'
    script = tmp_path / "job.sh"
    script.write_text(stub + record + text)
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    assert words[-1] == "it's a recipe.yaml"
    assert words[words.index("--node_rank") + 1] == "1"
    assert words[words.index("--master_addr") + 1] == "first"


def test_environment() -> None:
    cpu = validate(Recipe, {**TWO_NODES, "hardware": {"gpu": "cpu", "gpus": 2}}, "recipe")
    assert environment(cpu)["DS_ACCELERATOR"] == "cpu"
    assert int(environment(cpu)["OMP_NUM_THREADS"]) >= 1
    assert "DS_ACCELERATOR" not in environment(validate(Recipe, TWO_NODES, "recipe"))


def test_another_number_of_processes() -> None:
    one = validate(Recipe, {**TWO_NODES, "hardware": {"gpu": "cpu"}}, "recipe")
    assert with_processes(one, None) is one
    assert with_processes(one, 3).world == 3
    with pytest.raises(InputError, match="at least 1"):
        with_processes(one, 0)
    with pytest.raises(InputError, match="for one node"):
        with_processes(validate(Recipe, TWO_NODES, "recipe"), 4)


def test_several_nodes_get_their_commands(write: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match=r"--node_rank 1"):
        run(write({**TWO_NODES, "out": "o"}))


def test_more_gpus_than_there_are(
    fields: dict[str, Any], write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    fields["hardware"] = {"gpu": "A100-80GB", "gpus": 2}
    fields["strategy"] = {"name": "ddp"}
    with pytest.raises(InputError, match="for 2 GPUs a node, this machine has 0"):
        run(write(fields))


def test_dry_run_for_a_person() -> None:
    path = Path("r.yaml")
    text = "\n".join(render_dry_run(dry_run(validate(Recipe, TWO_NODES, "recipe"), path), path))
    for expected in ('"stage": 2', "optimizer", "fits", "--node_rank 1", "slots=8", "#SBATCH"):
        assert expected in text
    one = {**TWO_NODES, "hardware": {"gpu": "A100-80GB"}, "strategy": {"name": "none"}}
    text = "\n".join(render_dry_run(dry_run(validate(Recipe, one, "recipe"), path), path))
    assert "DeepSpeed" not in text
    assert "#SBATCH" not in text
    assert "qdeploy train r.yaml" in text
