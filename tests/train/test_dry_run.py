from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.core.schema import validate
from qdeploy.plan.schema import PARTS
from qdeploy.train.dry_run import DryRun, dry_run
from qdeploy.train.recipe import Recipe


def tried(path: str = "recipe.yaml", gpu: str = "A100-80GB", **fields: Any) -> DryRun:
    hardware = {"gpu": gpu, **fields.pop("hardware", {})}
    data = {
        "model": "Qwen/Qwen2.5-0.5B", "data": {"path": "d"}, "hardware": hardware, **fields,
    }  # fmt: skip
    return dry_run(validate(Recipe, data, "recipe"), Path(path))


def test_the_planner_fills_in_what_is_left_open() -> None:
    made = tried(hardware={"gpus": 4})
    strategy = made.recipe.strategy
    assert strategy.name == made.candidate.strategy
    assert strategy.offload == made.candidate.offload
    assert made.recipe.checkpointing.enabled == made.candidate.checkpointing
    assert made.fits is True
    assert made.global_batch == 32
    assert dry_run(made.recipe).candidate.per_gpu == made.candidate.per_gpu


def test_parts_add_up() -> None:
    parts = tried(strategy={"name": "none", "offload": "none"}).candidate.per_gpu
    assert sum(getattr(parts, f"{part}_bytes") for part in PARTS) == parts.total_bytes


def test_what_does_not_fit_is_said() -> None:
    made = tried(model="70B", strategy={"name": "none", "offload": "none"})
    assert made.fits is False
    assert made.suggestion
    assert any("a size to plan with" in warning for warning in made.warnings)


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        ({"gpus": 1}, ("qdeploy train 'my recipe.yaml'",)),
        ({"gpus": 4}, ("qdeploy train 'my recipe.yaml'",)),
        (
            {"gpus": 8, "nodes": 2},
            tuple(
                f"torchrun --nnodes 2 --node_rank {node} --nproc_per_node 8 --master_addr "
                "\"$MASTER_ADDR\" --master_port 29500 -m qdeploy.train.worker 'my recipe.yaml'"
                for node in (0, 1)
            ),
        ),
    ],
)
def test_launch(hardware: Any, expected: tuple[str, ...]) -> None:
    assert tried("my recipe.yaml", hardware=hardware).launch == expected


def test_deepspeed_only_where_it_runs() -> None:
    sharded = tried(hardware={"gpus": 2}, strategy={"name": "zero2", "offload": "none"})
    assert sharded.deepspeed is not None
    assert sharded.deepspeed["train_batch_size"] == 16
    assert tried(hardware={"gpus": 2}, strategy={"name": "ddp"}).deepspeed is None


def test_settings_reach_the_deepspeed_json() -> None:
    made = tried(
        gpu="V100-32GB",
        hardware={"gpus": 2},
        precision="fp16",
        loss_scaling={"initial": 256, "window": 10, "minimum": 2},
        optimizer={"gradient_clipping": 0.3},
        strategy={"name": "zero3", "offload": "nvme", "nvme_path": "/nvme"},
    ).deepspeed
    assert made is not None
    assert made["gradient_clipping"] == 0.3
    assert made["fp16"]["initial_scale_power"] == 8
    assert made["zero_optimization"]["offload_param"]["nvme_path"] == "/nvme"


def test_bf16_on_an_old_card_names_the_replacement() -> None:
    with pytest.raises(InputError, match="no BF16") as caught:
        tried(gpu="V100-32GB", strategy={"name": "none"})
    assert "fp16" in (caught.value.hint or "")


def test_another_number_of_processes() -> None:
    recipe = tried(strategy={"name": "zero2", "offload": "none"}).recipe
    made = dry_run(recipe, Path("r.yaml"), processes=2)
    assert made.recipe.world == 2
    assert made.launch == ("qdeploy train r.yaml --nproc 2",)


def test_cpu() -> None:
    made = tried(gpu="cpu", hardware={"gpus": 2}, strategy={"name": "zero2", "offload": "none"})
    assert made.fits is None
    assert made.capacity_bytes is None
    assert made.launch == ("qdeploy train recipe.yaml",)
    parameters = 494_032_768
    assert made.candidate.per_gpu.weights_bytes == 2 * parameters
    assert made.candidate.per_gpu.master_weights_bytes == 4 * parameters // 2
    assert made.candidate.per_gpu.optimizer_bytes == 8 * parameters // 2


@pytest.mark.parametrize(("memory", "fits"), [(64, True), (4, False)])
def test_cpu_with_known_memory(memory: float, fits: bool) -> None:
    made = tried(
        gpu="cpu", hardware={"gpus": 2, "host_memory_gib": memory}, strategy={"name": "zero2"}
    )
    assert made.fits is fits


def test_cpu_needs_a_strategy_and_no_fp16() -> None:
    with pytest.raises(InputError, match="no strategy"):
        tried(gpu="cpu")
    with pytest.raises(InputError, match="FP16 training needs a GPU"):
        tried(gpu="cpu", precision="fp16", strategy={"name": "none"})


@pytest.mark.parametrize(
    ("fields", "kind", "said"),
    [
        ({"model": "no/such-model"}, UnknownNameError, "no/such-model"),
        ({"gpu": "A1000"}, UnknownNameError, "A1000"),
        ({"strategy": {"name": "zero4"}}, UnknownNameError, "zero4"),
        ({"optimizer": {"name": "adam"}}, UnknownNameError, "adam"),
        ({"strategy": {"name": "ddp"}}, InputError, "GPU"),
        ({"hardware": {"gpus": 3}, "batch": {"global_batch": 64}}, InputError, "does not divide"),
    ],
)
def test_what_cannot_be(fields: Any, kind: type[InputError], said: str) -> None:
    with pytest.raises(kind, match=said):
        tried(**fields)


def test_no_torch() -> None:
    code = (
        "import sys; import qdeploy.train.dry_run, qdeploy.train.from_plan; "
        "sys.exit(bool({'torch', 'transformers', 'numpy', 'yaml.cyaml'} & set(sys.modules) "
        "- {'yaml.cyaml'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
