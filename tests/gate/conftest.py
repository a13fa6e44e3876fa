"""The factory of synthetic evaluations, and a policy for its two suites."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from qdeploy.gate.policy import Policy

KINDS: dict[str, list[dict[str, Any]]] = {
    "short_qa": [{"rule": "non_inferior", "metric": "exact_match", "margin": 0.08}],
    "long_generation": [{"rule": "non_inferior", "metric": "loop_free", "margin": 0.08}],
}
SCREENS: list[dict[str, Any]] = [
    {"rule": "screen", "metric": "kl_mean", "max": 0.5},
    {"rule": "screen", "metric": "top1_agreement", "min": 0.6},
    {"rule": "screen", "metric": "block_error", "max": 0.04},
]


@pytest.fixture(scope="session")
def factory() -> ModuleType:
    """tests/gate/factory.py, which is no package's module."""
    spec = importlib.util.spec_from_file_location(
        "qdeploy_test_factory", Path(__file__).parents[1] / "gate" / "factory.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def policy() -> Policy:
    return Policy(name="test", kinds=KINDS, screens=SCREENS)
