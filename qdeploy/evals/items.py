"""What the lines of a suite's JSONL hold, one schema per kind of suite."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from qdeploy.core.schema import Schema
from qdeploy.evals.text import units

Kind = Literal["short_qa", "extraction", "classification", "long_generation"]


def _says_something(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _can_be_scored(text: str) -> str:
    if not units(text):
        raise ValueError("the reference is empty once punctuation is dropped")
    return text


Text = Annotated[str, AfterValidator(_says_something)]
Reference = Annotated[str, AfterValidator(_can_be_scored)]


class Item(Schema):
    """What every item has. `cluster` names what items share (a passage, a template)."""

    id: Text
    lang: Text
    cluster: Text
    domain: str = ""

    @property
    def question(self) -> str:
        """What a person reads as the question; shown in reports."""
        raise NotImplementedError

    @property
    def reference(self) -> str:
        """What a person reads as the right answer; shown in reports."""
        raise NotImplementedError


class ShortQaItem(Item):
    """A question about a passage; any of `answers` is right."""

    context: Text
    question_text: Text = Field(alias="question")
    answers: Annotated[list[Reference], Field(min_length=1)]

    @property
    def question(self) -> str:
        """The question without its passage."""
        return self.question_text

    @property
    def reference(self) -> str:
        """The accepted answers."""
        return " | ".join(self.answers)


class ExtractionItem(Item):
    """Fields to be found in a text."""

    text: Text
    fields: Annotated[dict[str, Reference], Field(min_length=1)]

    @property
    def question(self) -> str:
        """The text and the names of the fields."""
        return f"{self.text} [{', '.join(self.fields)}]"

    @property
    def reference(self) -> str:
        """The fields with their values."""
        return ", ".join(f"{name}: {value}" for name, value in self.fields.items())


class ClassificationItem(Item):
    """A text and the labels to choose from; `label` is right."""

    task: Text
    text: Text
    labels: Annotated[list[Reference], Field(min_length=2)]
    label: str

    @model_validator(mode="after")
    def _label_is_a_choice(self) -> ClassificationItem:
        if len(set(self.labels)) != len(self.labels):
            raise ValueError(f"labels must differ from each other, found {self.labels}")
        if self.label not in self.labels:
            raise ValueError(f"label {self.label!r} is not one of {self.labels}")
        return self

    @property
    def question(self) -> str:
        """The task and the text."""
        return f"{self.task} {self.text}"

    @property
    def reference(self) -> str:
        """The right label."""
        return self.label


class Demands(Schema):
    """What the prompt of a long generation asks for and a program can check."""

    required_points: list[Reference] = Field(default_factory=list)
    """Words that must appear."""
    numbered_items: int | None = Field(default=None, ge=1)
    """The text must hold a list numbered 1..N, complete and in order."""
    closed: list[Literal["code_fence", "table", "json"]] = Field(default_factory=list)
    """Structures that must be there and be complete."""
    min_chars: int | None = Field(default=None, ge=1)


class LongGenerationItem(Item):
    """A prompt whose answer is long."""

    prompt: Text
    demands: Demands = Field(default_factory=Demands)

    @property
    def question(self) -> str:
        """The prompt."""
        return self.prompt

    @property
    def reference(self) -> str:
        """The demands in words; empty when there are none."""
        return ", ".join(
            f"{name}: {value}"
            for name, value in self.demands.model_dump(exclude_defaults=True).items()
        )


ITEM_OF_KIND: dict[str, type[Item]] = {
    "short_qa": ShortQaItem,
    "extraction": ExtractionItem,
    "classification": ClassificationItem,
    "long_generation": LongGenerationItem,
}
