from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from qdeploy.core.errors import InputError
from qdeploy.core.schema import validate
from qdeploy.train.fingerprint import model_digest, recipe_digest
from qdeploy.train.recipe import Recipe


def digest(fields: dict[str, Any], **changes: Any) -> str:
    return recipe_digest(validate(Recipe, {**fields, **changes}, "recipe"))


def test_only_what_changes_the_losses_counts(fields: dict[str, Any]) -> None:
    same = digest(fields)
    assert digest(fields, out="elsewhere", save={"every_steps": 1}, model="m") == same
    assert digest(fields, data={**fields["data"], "path": "moved"}) == same
    assert digest(fields, hardware={**fields["hardware"], "host_memory_gib": 1.0}) == same
    assert digest(fields, seed=1) != same
    assert digest(fields, steps=5) != same
    assert digest(fields, data={**fields["data"], "seq_len": 64}) != same
    assert digest(fields, hardware={**fields["hardware"], "gpus": 2}) != same


def test_models_differ_by_any_tensor(tiny_llama: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_llama, copy)
    assert model_digest(copy) == model_digest(tiny_llama)
    weights = copy / "model.safetensors"
    original = weights.read_bytes()
    weights.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    assert model_digest(copy) != model_digest(tiny_llama)
    weights.write_bytes(original[:-1])
    with pytest.raises(InputError, match="truncated"):
        model_digest(copy)
    weights.write_bytes(original)
    (copy / "config.json").write_text((copy / "config.json").read_text() + " ")
    assert model_digest(copy) != model_digest(tiny_llama)
