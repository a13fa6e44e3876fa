"""Policies: what a candidate must show before it may serve a class of tasks (YAML)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from qdeploy.core.artifacts import Artifact, sha256_text
from qdeploy.core.errors import InputError
from qdeploy.core.schema import read_yaml
from qdeploy.evals.results import ClassResult
from qdeploy.gate.rule import RuleSettings, parse_rule

BASELINE = "baseline"


class Policy(Artifact):
    """`qdeploy.policy/1`."""

    SCHEMA: ClassVar[str] = "qdeploy.policy/1"

    name: str
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """One-sided error probability of each rule."""
    min_items: int = Field(default=30, ge=1)
    """With fewer items in a task class nothing is claimed."""
    fallback: str = BASELINE
    """The candidate that serves a task class when no other passed there."""
    order: list[str] = Field(default_factory=list)
    """Candidates, cheapest first; those not named follow by bytes of weights."""
    allow_same_weights: bool = False
    """Whether a candidate may have the baseline's very weights (the same file, other runtime)."""
    classes: dict[str, list[dict[str, Any]]] = Field(default_factory=dict)
    """Task class ('short_qa.en') or suite ('short_qa') -> rules. Each must have been evaluated;
    the entry of the task class, else of the suite, else of the kind counts alone."""
    kinds: dict[str, list[dict[str, Any]]] = Field(default_factory=dict)
    """Kind of suite -> rules of those task classes that `classes` does not name."""
    screens: list[dict[str, Any]] = Field(default_factory=list)
    """Rules that hold in every task class."""

    def digest(self) -> str:
        """sha256 of what the policy says, comments and order of keys left out."""
        return sha256_text(self.to_json())

    def rules_for(self, result: ClassResult) -> list[RuleSettings]:
        """The rules of a task class, min_items and informative included; [] when it has none."""
        own = self._own_rules(result)
        if not own:
            return []
        named = {rule.rule for rule in own}
        always: list[dict[str, Any]] = [
            {"rule": "informative"},
            {"rule": "min_items", "min": self.min_items},
        ]
        return [*_parse([rule for rule in always if rule["rule"] not in named], "policy"), *own]

    def screen_rules(self) -> list[RuleSettings]:
        """The rules that hold in every task class."""
        return _parse(self.screens, "screens")

    def not_evaluated(self, classes: list[ClassResult]) -> list[str]:
        """Entries of `classes` that no task class of a report belongs to."""
        known = {name for result in classes for name in (result.task_class, result.suite)}
        return sorted(set(self.classes) - known)

    def _own_rules(self, result: ClassResult) -> list[RuleSettings]:
        for name in (result.task_class, result.suite):
            if name in self.classes:
                return _parse(self.classes[name], f"classes.{name}")
        return _parse(self.kinds.get(result.kind, []), f"kinds.{result.kind}")


def read_policy(path: Path) -> Policy:
    """The policy at `path`.

    Raises InputError for a missing or malformed file, and for an unknown rule or key with the
    nearest known one.
    """
    policy = read_yaml(path, Policy)
    if not policy.classes and not policy.kinds:
        raise InputError(f"{path} has no rules: give 'classes' or 'kinds'")
    for section, entries in (("classes", policy.classes), ("kinds", policy.kinds)):
        for key, rules in entries.items():
            _parse(rules, f"{path}: {section}.{key}")
    _parse(policy.screens, f"{path}: screens")
    return policy


def _parse(rules: list[dict[str, Any]], where: str) -> list[RuleSettings]:
    return [parse_rule(rule, f"{where}[{at}]") for at, rule in enumerate(rules)]
