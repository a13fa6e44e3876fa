"""Runs of two ranks, through the command: every strategy, resuming, and what can go wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from qdeploy.models.checkpoint import open_checkpoint

pytestmark = pytest.mark.distributed
more = pytest.mark.extended

Fields = dict[str, Any]
Write = Callable[[Fields], Path]


def two_ranks(fields: Fields, strategy: str, offload: str = "none", **changes: Any) -> Fields:
    return {
        **fields,
        "hardware": {"gpu": "cpu", "gpus": 2},
        "batch": {"micro_batch": 2, "accumulation_steps": 1},
        "strategy": {"name": strategy, "offload": offload},
        "out": f"{fields['out']}-{strategy}-{offload}",
        **changes,
    }


@pytest.fixture(scope="module")
def reference() -> dict[str, dict[int, float]]:
    """Loss curves of one process, by precision."""
    return {}


@pytest.mark.parametrize(
    ("strategy", "offload"),
    [
        ("ddp", "none"), ("zero1", "none"), ("zero2", "none"), ("zero3", "none"), ("fsdp", "none"),
        pytest.param("zero2", "optimizer", marks=more),
        pytest.param("zero3", "optimizer", marks=more),
        pytest.param("zero3", "all", marks=more), pytest.param("fsdp-grad-op", "none", marks=more),
    ],
)  # fmt: skip
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=more)])
def test_the_same_losses_as_one_process(
    fields: Fields,
    write: Write,
    here: Any,
    train: Any,
    losses: Any,
    reference: dict[str, dict[int, float]],
    strategy: str,
    offload: str,
    precision: str,
) -> None:
    fields |= {"precision": precision, "checkpointing": {"enabled": precision == "bf16"}}
    if precision not in reference:
        assert here(write(fields))[0] == 0
        reference[precision] = losses(Path(fields["out"]))
    document = two_ranks(fields, strategy, offload)
    done = train(write(document))
    assert done.returncode == 0, done.stderr
    out = Path(document["out"])
    assert sorted(losses(out)) == [1, 2, 3, 4]
    rounding = {"fp32": 1e-5, "bf16": 2e-3}[precision]
    assert losses(out) == pytest.approx(reference[precision], rel=rounding)
    written, source = open_checkpoint(out / "model"), open_checkpoint(Path(fields["model"]))
    assert {n: i.shape for n, i in written.tensors.items()} == {
        n: i.shape for n, i in source.tensors.items()
    }
    assert {info.dtype for info in written.tensors.values()} == {
        {"fp32": "F32", "bf16": "BF16"}[precision]
    }


@more
@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp"])
def test_adapters(
    fields: Fields, write: Write, train: Any, here: Any, losses: Any, strategy: str
) -> None:
    fields |= {"peft": {"kind": "lora", "rank": 4}, "checkpointing": {"enabled": True}}
    assert here(write(fields))[0] == 0
    document = two_ranks(fields, strategy)
    done = train(write(document), "--merge")
    assert done.returncode == 0, done.stderr
    out = Path(document["out"])
    assert losses(out) == pytest.approx(losses(Path(fields["out"])), rel=1e-4)
    assert (out / "adapter" / "adapter_model.safetensors").is_file()
    assert open_checkpoint(out / "model").tensors


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The ranks that a started command has by now, in order."""
    found = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "qdeploy.train.worker" in child.cmdline()
    ]
    return sorted(found, key=lambda child: child.pid)


def kill_a_rank_after(checkpoint: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not (checkpoint / "qdeploy_checkpoint.json").is_file():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    ranks_of(process)[-1].send_signal(signal.SIGKILL)


@pytest.mark.parametrize(
    "strategy", ["zero2", "zero3", *(pytest.param(name, marks=more) for name in ("ddp", "fsdp"))]
)
def test_killed_and_resumed_is_as_unbroken(
    fields: Fields, write: Write, train: Any, start: Any, losses: Any, strategy: str
) -> None:
    fields |= {"steps": 12, "save": {"every_steps": 2}}
    unbroken = two_ranks(fields, strategy)
    assert train(write(unbroken)).returncode == 0
    broken = {**unbroken, "out": unbroken["out"] + "-broken"}
    path, out = write(broken), Path(broken["out"])
    process = start(path)
    kill_a_rank_after(out / "checkpoints" / "checkpoint-2", process)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1, err
    assert "was ended by signal 9" in err
    assert not (out / "model").exists()
    assert not (out / "checkpoints" / ".saving").exists()

    resumed = train(path, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "going on from" in resumed.stderr
    assert losses(out) == losses(Path(unbroken["out"]))
    weights = "model/model.safetensors"
    assert (out / weights).read_bytes() == (Path(unbroken["out"]) / weights).read_bytes()


def test_two_ranks_with_different_recipes(fields: Fields, write: Write) -> None:
    first = write(two_ranks(fields, "ddp"))
    other = write(two_ranks(fields, "zero2", seed=1))
    code = (
        "import os, runpy, sys; sys.argv[1:] = [sys.argv[1 + int(os.environ['RANK'])]]; "
        "runpy.run_module('qdeploy.train.worker', run_name='__main__')"
    )
    script = first.parent / "start.py"
    script.write_text(code)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [sys.executable, *command, str(script), str(first), str(other)],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.count("error: ") == 1
    assert "rank 1 has another recipe than rank 0" in done.stderr
    assert not Path(fields["out"]).exists()


def test_a_full_disk_on_one_rank(fields: Fields, write: Write, train: Any, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)],
        capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode or shutil.which("umount") is None:
        pytest.skip("no right to mount a small disk")
    try:
        document = two_ranks(fields, "zero2", save={"every_steps": 1, "keep": 9}, steps=8)
        document["out"] = str(small / "out")
        path = tmp_path / "small.yaml"
        path.write_text(json.dumps(document))
        done = train(path)
        assert done.returncode == 1
        assert done.stderr.count("error: the checkpoint of step") == 1
        assert "no space left on the disk" in done.stderr
        checkpoints = small / "out" / "checkpoints"
        assert (checkpoints / "checkpoint-1" / "qdeploy_checkpoint.json").is_file()
        assert not (checkpoints / ".saving").exists()
    finally:
        subprocess.run(["umount", str(small)], check=False)
