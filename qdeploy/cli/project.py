"""`qdeploy.yaml`, the project file: what the bare commands work on. Options override it."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from qdeploy.core.errors import InputError
from qdeploy.core.schema import Schema, read_yaml

PROJECT_NAME = "qdeploy.yaml"


class Target(Schema):
    """Where the model will be served."""

    gpu: str
    count: int = Field(default=1, gt=0)
    concurrency: int = Field(default=16, gt=0)
    context: int = Field(default=4096, gt=0)


class Train(Schema):
    """Where the model is trained."""

    gpus: str
    """'4xA100-80GB'."""
    recipe: str | None = None


class Calib(Schema):
    """The team's own data."""

    data: str


class ProjectCandidate(Schema):
    """A candidate for deployment: a model folder, or a scheme to quantize by and its folder."""

    model: str | None = None
    scheme: str | None = None
    out: str | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> ProjectCandidate:
        quantized = self.scheme is not None and self.out is not None
        if quantized == (self.model is not None):
            raise ValueError("a candidate has either 'model', or 'scheme' and 'out'")
        return self

    @property
    def folder(self) -> str:
        """The folder (or hub id) of the candidate's model."""
        return self.model or self.out or ""


class Evals(Schema):
    """The suites to compare on."""

    suites: list[str] = Field(min_length=1)


class Project(Schema):
    """The project file; relative paths are relative to its folder."""

    model: str
    target: Target | None = None
    train: Train | None = None
    calib: Calib | None = None
    candidates: dict[str, ProjectCandidate] = Field(default_factory=dict)
    """Name -> candidate, cheapest first; the names that --compare and the gate use."""
    evals: Evals | None = None
    policy: str | None = None


def find_project() -> Project | None:
    """The project file of the working folder, or None.

    Raises InputError when it is malformed.
    """
    path = Path(PROJECT_NAME)
    return read_yaml(path, Project) if path.is_file() else None


def require(value: str | None, what: str, option: str) -> str:
    """`value`, or InputError saying that neither the option nor the project file gives it."""
    if value:
        return value
    raise InputError(
        f"no {what} given, and no {PROJECT_NAME} here names one",
        hint=f"give {option}, or make a project file with: qdeploy init",
    )
