"""Every recipe in `recipes/` fits by the plan, and DeepSpeed accepts its configuration."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import pytest

from qdeploy.core.shipped import shipped
from qdeploy.core.units import format_bytes
from qdeploy.plan.lint import lint
from qdeploy.train.dry_run import dry_run
from qdeploy.train.recipe import read_recipe
from qdeploy.train.request import request_of

RECIPES = sorted(shipped("recipes").glob("*.yaml"))
IDS = [path.stem for path in RECIPES]


@pytest.mark.parametrize("path", RECIPES, ids=IDS)
def test_it_fits(path: Path) -> None:
    recipe = read_recipe(path)
    assert recipe.hardware.host_memory_gib is not None, "a recipe says what the host must have"
    made = dry_run(recipe, path)
    assert made.recipe == recipe, "a shipped recipe leaves no layout open"
    need = format_bytes(made.candidate.per_gpu.need_bytes)
    assert made.fits, (
        f"{path.name} no longer fits: {need} a GPU, {made.candidate.reason}; {made.suggestion}"
    )
    assert made.warnings == [] or recipe.hardware.gpu == "cpu"


@pytest.mark.parametrize("path", RECIPES, ids=IDS)
def test_deepspeed_accepts_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.runtime import config as module

    recipe = read_recipe(path)
    config = dry_run(recipe, path).deepspeed
    if config is None:
        assert recipe.strategy.name in ("none", "ddp")
        return
    monkeypatch.setattr(module.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(module.dist, "get_world_size", lambda: recipe.world)
    accepted = module.DeepSpeedConfig(config)
    assert accepted.train_batch_size == recipe.global_batch
    assert f"zero{int(accepted.zero_optimization_stage)}" == recipe.strategy.name
    errors = [f for f in lint(config, request_of(recipe)) if f.severity != "note"]
    assert errors == []


def test_the_name_says_what_it_is() -> None:
    for path in RECIPES:
        recipe = read_recipe(path)
        words = path.stem.split("-")
        size = "proc" if recipe.hardware.gpu == "cpu" else "gpu"
        assert f"{recipe.world}{size}" in words, path.name
        if recipe.peft is None:
            assert recipe.strategy.name in words, path.name
        else:
            assert recipe.peft.kind in words, path.name
        assert ("offload" in words) == (recipe.strategy.offload != "none"), path.name


def test_what_is_shipped() -> None:
    """7B, 13B and 70B on 2, 4, 8 and more cards; V100; LoRA and QLoRA on 24 GB; CPUs."""
    full: dict[str, set[int]] = {}
    for path in RECIPES:
        recipe = read_recipe(path)
        if recipe.peft is None and recipe.hardware.gpu in ("A100-80GB", "H100-80GB"):
            full.setdefault(path.stem.split("-")[0], set()).add(recipe.world)
    assert set(full) == {"7b", "13b", "70b"}
    for worlds in full.values():
        assert {2, 4} <= worlds
        assert max(worlds) > 8
    assert 8 in full["7b"]
    small = {"RTX-3090", "RTX-4090"}
    kinds = {(r.peft.kind, r.hardware.gpu in small) for r in map(read_recipe, RECIPES) if r.peft}
    assert {("lora", True), ("qlora", True), ("lora", False), ("qlora", False)} <= kinds
    assert {"V100-32GB", "cpu"} <= {read_recipe(path).hardware.gpu for path in RECIPES}
