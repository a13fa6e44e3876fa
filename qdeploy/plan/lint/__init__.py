"""What a user's DeepSpeed JSON costs here, and what in it is contradictory.

`lint(config, request)` runs every rule of `rules/`, one file each: a new rule is a new file that
defines `check(case)`. Facts about DeepSpeed are those of 0.19 (deepspeed/runtime/config.py and
zero/config.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from qdeploy.core.plugins import load_plugin, plugin_names
from qdeploy.plan.lint.case import Case, Finding, make_case
from qdeploy.plan.lint.reading import read_ds_config
from qdeploy.plan.lint.run import request_with
from qdeploy.plan.request import PlanRequest

RULES = "qdeploy.plan.lint.rules"
_ORDER = {"error": 0, "warning": 1, "note": 2}

__all__ = ["Case", "Finding", "lint", "read_ds_config", "request_with"]


def lint(config: Mapping[str, Any], request: PlanRequest) -> list[Finding]:
    """All findings, errors first.

    Raises InputError for a `request` that cannot be, and for a `zero_optimization` that is no
    object.
    """
    case = make_case(config, request)
    found = [finding for name in plugin_names(RULES) for finding in _rule(name)(case)]
    return sorted(found, key=lambda finding: (_ORDER[finding.severity], finding.key))


def _rule(name: str) -> Callable[[Case], Iterator[Finding]]:
    return cast("Callable[[Case], Iterator[Finding]]", load_plugin(RULES, name, "rule").check)
