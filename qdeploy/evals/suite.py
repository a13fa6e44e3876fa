"""Suites: a YAML file that says how to ask and how to judge, and a JSONL file of items beside it.

A suite falls into task classes by language ('short_qa.en'); the task class is the unit of every
comparison and decision.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml
from jinja2 import TemplateSyntaxError
from pydantic import Field, model_validator

from qdeploy.core.artifacts import sha256_files
from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.core.schema import Schema, validate
from qdeploy.evals.items import ITEM_OF_KIND, Item, Kind
from qdeploy.evals.render import template
from qdeploy.evals.scoring import metric


class Decoding(Schema):
    """Greedy decoding and where it ends."""

    max_new_tokens: int = Field(ge=1)
    stop: list[str] = Field(default_factory=list)
    """Texts that end an answer; they are not part of it."""

    @model_validator(mode="before")
    @classmethod
    def _stop_is_a_list(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("stop"), str):
            raise ValueError(  # noqa: TRY004 (pydantic reports ValueError)
                f"stop must be a list of texts, write [{json.dumps(data['stop'])}]"
            )
        return data

    @model_validator(mode="after")
    def _stop_can_occur(self) -> Decoding:
        for text in self.stop:
            if not text:
                raise ValueError("an empty stop text would end every answer at once")
            if "\\n" in text or "\\t" in text:
                raise ValueError(
                    f"stop text {text!r} holds a backslash and a letter, not a line break; "
                    'in YAML write "\\n" in double quotes'
                )
        return self


class SuiteSpec(Schema):
    """The YAML file."""

    schema_id: Literal["qdeploy.suite/1"] = Field(alias="schema")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    kind: Kind
    version: int = Field(ge=1)
    license: str
    description: str
    data: str
    """The JSONL file's name, in the same folder."""
    prompt: dict[str, str] = Field(min_length=1)
    """Language -> Jinja2 template of the user's message; it sees the item's keys."""
    decoding: Decoding
    metrics: list[str] = Field(min_length=1)
    primary: str
    floor: float | Literal["chance"]
    """What guessing reaches on the primary metric; 'chance': the mean of 1 / labels."""

    @model_validator(mode="after")
    def _fits_together(self) -> SuiteSpec:
        if self.primary not in self.metrics:
            raise ValueError(f"primary {self.primary!r} is not among metrics {self.metrics}")
        if len(set(self.metrics)) != len(self.metrics):
            raise ValueError(f"metrics must differ from each other, found {self.metrics}")
        if self.floor == "chance" and self.kind != "classification":
            raise ValueError(f"floor 'chance' needs kind 'classification', found {self.kind!r}")
        for name in self.metrics:
            try:
                kinds = metric(name).KINDS
            except UnknownNameError as error:
                raise ValueError(f"{error.message}; {error.hint}") from None
            if self.kind not in kinds:
                raise ValueError(f"metric {name!r} is for {sorted(kinds)}, not {self.kind!r}")
        judge = metric(self.primary)
        if judge.DIRECTION != "higher" or judge.RANGE != 1:
            raise ValueError(f"primary {self.primary!r} must be a score of 0..1, higher is better")
        for lang, text in self.prompt.items():
            try:
                template(text)
            except TemplateSyntaxError as error:
                raise ValueError(f"prompt.{lang}: line {error.lineno}: {error.message}") from None
        return self


@dataclass(frozen=True)
class Suite:
    """A suite that was read and checked."""

    spec: SuiteSpec
    items: list[Item]
    digest: str
    """sha256 of the YAML and the JSONL."""

    def task_class(self, item: Item) -> str:
        """'SUITE.LANG' of an item."""
        return f"{self.spec.name}.{item.lang}"

    def by_class(self) -> dict[str, list[Item]]:
        """Task class -> its items, in the file's order."""
        classes: dict[str, list[Item]] = defaultdict(list)
        for item in self.items:
            classes[self.task_class(item)].append(item)
        return dict(classes)


def read_suite(path: Path) -> Suite:
    """The suite at `path` (YAML). Raises InputError that names the file and the line."""
    spec = validate(SuiteSpec, _read_mapping(path), str(path))
    data = path.parent / spec.data
    if data.resolve().parent != path.parent.resolve():
        raise InputError(f"{path}: data {spec.data!r} must be a file in the suite's own folder")
    items: list[Item] = []
    lines: dict[str, int] = {}
    for number, raw in _rows(data):
        where = f"{data}:{number}"
        item = validate(ITEM_OF_KIND[spec.kind], raw, where)
        if item.id in lines:
            raise InputError(f"{where}: id {item.id!r} is already in line {lines[item.id]}")
        if item.lang not in spec.prompt:
            raise InputError(
                f"{where}: {path.name} has no prompt for language {item.lang!r}, "
                f"only for {', '.join(spec.prompt)}"
            )
        lines[item.id] = number
        items.append(item)
    if not items:
        raise InputError(f"{data} has no items: nothing could be measured")
    return Suite(spec, items, sha256_files(path.parent, [path.name, spec.data]))


def _read_mapping(path: Path) -> Any:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)  # noqa: S506
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path} must hold a mapping of keys to values")
    return data


class _UniqueKeys(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys; here they are an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for at, key in enumerate(keys) if key in keys[:at]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {twice!r} is there twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number, JSON document) of each line that is not blank."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, json.loads(line)
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{number}: not valid JSON: {error.msg}") from None


def capped(suite: Suite, max_new_tokens: int | None) -> Suite:
    """The suite with answers of at most `max_new_tokens` tokens; None: as it is."""
    decoding = suite.spec.decoding
    if max_new_tokens is None or decoding.max_new_tokens <= max_new_tokens:
        return suite
    shorter = decoding.model_copy(update={"max_new_tokens": max_new_tokens})
    return replace(suite, spec=suite.spec.model_copy(update={"decoding": shorter}))


def sub_sample(items: list[Item], limit: int | None, seed: int) -> list[Item]:
    """At most `limit` of the items of one task class, drawn evenly from its clusters.

    Clusters take turns in an order shuffled by `seed`, so as many clusters as possible are there;
    the items keep the file's order. Raises InputError for a limit below 1.
    """
    if limit is None:
        return items
    if limit < 1:
        raise InputError(f"limit must be at least 1, found {limit}")
    clusters: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        clusters[item.cluster].append(item)
    rng = random.Random(f"{seed}")  # noqa: S311 (not for secrets)
    order = sorted(clusters)
    rng.shuffle(order)
    for name in order:
        rng.shuffle(clusters[name])
    turns = [
        clusters[name][turn]
        for turn in range(max(map(len, clusters.values()), default=0))
        for name in order
        if turn < len(clusters[name])
    ]
    chosen = {item.id for item in turns[:limit]}
    return [item for item in items if item.id in chosen]
