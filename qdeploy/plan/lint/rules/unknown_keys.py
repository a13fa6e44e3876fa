"""Keys that DeepSpeed does not know: at the top it ignores them, inside its blocks it stops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qdeploy.core.errors import nearest
from qdeploy.core.toml import read_toml
from qdeploy.plan.lint.case import Case, Finding

_STRICT = ("zero_optimization", "bf16", "fp16")


def check(case: Case) -> Iterator[Finding]:
    """Unknown keys of the top level and of the blocks whose keys are fixed."""
    keys, _ = read_toml("qdeploy.plan.lint", "keys")
    yield from _unknown("", case.config, [*keys["top"], *keys["removed"]["top"]])
    for path, known in keys["inside"].items():
        found = _at(case.config, path)
        if isinstance(found, Mapping):
            removed = keys["removed"].get(path, [])
            yield from _unknown(path, found, [*known, *removed])


def _unknown(path: str, found: Mapping[str, Any], known: list[str]) -> Iterator[Finding]:
    for name in found:
        if name in known:
            continue
        near = nearest(str(name), known)
        stops = path.split(".")[0] in _STRICT
        yield Finding(
            severity="error" if stops else "warning",
            key=f"{path}.{name}" if path else str(name),
            message="DeepSpeed stops: no such key"
            if stops
            else "DeepSpeed ignores it: no such key",
            advice=f"did you mean {near}?" if near else "take it out",
        )


def _at(config: Mapping[str, Any], path: str) -> Any:
    found: Any = config
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
