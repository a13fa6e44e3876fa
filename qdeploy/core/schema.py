"""Schemas of everything that is read from or written to a file.

A schema is a frozen pydantic model that refuses unknown keys and names the nearest known one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from qdeploy.core.errors import InputError, nearest

S = TypeVar("S", bound="Schema")


class Schema(BaseModel):
    """Base of all schemas: frozen, unknown keys refused, NaN and infinity refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False
    )


def validate(schema: type[S], data: Any, where: str) -> S:
    """`data` as `schema`.

    Raises InputError that names `where` (a file, say), each wrong key and what to do.
    """
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{where}: {_first_problems(schema, error)}") from None


def read_yaml(path: Path, schema: type[S]) -> S:
    """The YAML file at `path` as `schema`. Raises InputError for a missing or malformed file."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path} must hold a mapping of keys to values, found {_kind(data)}")
    return validate(schema, data, str(path))


def _kind(data: Any) -> str:
    return "nothing" if data is None else type(data).__name__


def _first_problems(schema: type[BaseModel], error: ValidationError, most: int = 3) -> str:
    problems = []
    for item in error.errors()[:most]:
        key = ".".join(str(part) for part in item["loc"]) or "the document"
        if item["type"] == "extra_forbidden":
            known = _known_keys(schema, item["loc"][:-1])
            near = nearest(str(item["loc"][-1]), known)
            tip = f"; did you mean {near!r}?" if near else f"; known: {', '.join(sorted(known))}"
            problems.append(f"unknown key {key!r}{tip}")
        elif item["type"] == "missing":
            problems.append(f"key {key!r} is missing")
        else:
            problems.append(f"{key}: {item['msg']}, found {_shown(item['input'])}")
    more = error.error_count() - most
    return "; ".join(problems) + (f"; and {more} more" if more > 0 else "")


def _shown(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _known_keys(schema: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The keys of the model that `path` leads to; empty where the path leaves the models."""
    current: type[BaseModel] | None = schema
    for part in path:
        field = None if current is None else _field(current, part)
        current = field if field is not None else current if isinstance(part, int) else None
    if current is None:
        return []
    return [info.alias or name for name, info in current.model_fields.items()]


def _field(schema: type[BaseModel], part: int | str) -> type[BaseModel] | None:
    for name, info in schema.model_fields.items():
        if part in (name, info.alias):
            return _model_in(info.annotation)
    return None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _model_in(inner)
        if found is not None:
            return found
    return None
