"""What happens inside a process when memory or disk run out."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qdeploy.core.errors import InputError, RunError
from qdeploy.core.schema import validate
from qdeploy.train.checkpoints import latest
from qdeploy.train.out_of_memory import explained, is_out_of_memory
from qdeploy.train.ranks import Rank, agree, lost_a_rank, take_device
from qdeploy.train.recipe import Recipe


def test_a_full_disk_leaves_earlier_checkpoints(
    fields: dict[str, Any],
    write: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    here: Any,
) -> None:
    saved = torch.save

    def full(thing: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        if "checkpoint-2" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        saved(thing, path, *args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    fields["save"] = {"every_steps": 1}
    code, err = here(write(fields))
    assert code == 1
    assert err.count("error:") == 1
    assert "checkpoint of step 2 could not be written" in err
    assert "no space left on the disk" in err
    found = latest(Path(fields["out"]) / "checkpoints")
    assert found is not None
    assert found[1].step == 1


def test_out_of_memory_is_explained(
    fields: dict[str, Any],
    write: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    here: Any,
) -> None:
    from transformers import LlamaModel

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 4294967296 bytes. Error code 12 (Cannot allocate memory)"
        )

    monkeypatch.setattr(LlamaModel, "forward", refuse)
    code, err = here(write(fields))
    assert code == 1
    assert err.count("error:") == 1
    assert "rank 0 is out of memory" in err
    assert "4.0 GiB" in err
    assert "the smallest change" in err
    assert "Traceback" not in err
    assert "DefaultCPUAllocator" in next(Path(fields["out"]).glob("log/out-of-memory*")).read_text()


def test_which_errors_are_out_of_memory(fields: dict[str, Any], tmp_path: Path) -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    recipe = validate(Recipe, fields, "recipe")
    message = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
        "of which 1.00 GiB is free. Process 1 has 78.10 GiB memory in use. Of the allocated memory "
        "77.00 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
    )
    said = explained(torch.OutOfMemoryError(message), recipe, 3)
    assert isinstance(said, RunError)
    assert "rank 3" in said.message
    assert "2.0 GiB" in said.message
    assert "MemoryError" in explained(MemoryError(), recipe, 0).message


def test_a_lost_rank() -> None:
    assert lost_a_rank(RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error"))
    assert not lost_a_rank(RuntimeError("shapes differ"))
    assert not lost_a_rank(ValueError("gloo/transport"))


def test_one_process_agrees_with_itself() -> None:
    alone = Rank(0, 1, 0)
    agree(alone, None, {"recipe": "a"})
    with pytest.raises(InputError, match="wrong"):
        agree(alone, InputError("wrong"), {})


def test_another_number_of_processes_than_the_recipes(fields: dict[str, Any]) -> None:
    recipe = validate(Recipe, fields, "recipe")
    assert take_device(recipe, Rank(0, 1, 0)) == "cpu"
    with pytest.raises(InputError, match="for 1 processes, 2 were started"):
        take_device(recipe, Rank(0, 2, 0))


def test_one_rank_speaks_for_all() -> None:
    store = torch.distributed.HashStore()
    first, second = Rank(0, 2, 0, store), Rank(1, 2, 1, store)
    assert second.fails_first()
    assert not first.fails_first()
    second.has_spoken()
    first.wait_for_speaker()
    assert Rank(0, 1, 0).fails_first()
