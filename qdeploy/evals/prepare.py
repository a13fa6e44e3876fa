"""A suite made ready for a run: drawn, rendered, and only what fits."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Protocol

from qdeploy.evals.compare import TaskClass
from qdeploy.evals.items import ClassificationItem
from qdeploy.evals.limits import Limits
from qdeploy.evals.render import Rendered, render
from qdeploy.evals.suite import Suite, sub_sample

_NOISE_SHORT_ITEMS = 12
_NOISE_LONG_ITEMS = 4

NOISE_IN_WORDS = (
    "baseline again in batches of half the size and reverse order, "
    f"{_NOISE_SHORT_ITEMS} items of a short task class, {_NOISE_LONG_ITEMS} of a long one"
)


class Reader(Protocol):
    """What preparing needs of a candidate."""

    @property
    def tokenizer(self) -> Any:
        """A Hugging Face tokenizer."""

    @property
    def max_positions(self) -> int:
        """Tokens that prompt and answer may have together."""


@dataclass(frozen=True)
class Prepared:
    """A suite with its prompts as the baseline's tokenizer gives them."""

    suite: Suite
    prompts: list[Rendered]
    skipped: dict[str, int]
    """Task class -> items that did not fit."""

    def of_class(self, name: str) -> list[Rendered]:
        """The prompts of one task class."""
        return [p for p in self.prompts if self.suite.task_class(p.item) == name]

    @property
    def digest(self) -> str:
        """sha256 of all token ids, prompts and labels."""
        ids = [[prompt.item.id, prompt.prompt_ids, prompt.label_ids] for prompt in self.prompts]
        return hashlib.sha256(repr(ids).encode()).hexdigest()

    def task_classes(self) -> list[TaskClass]:
        """What the comparison needs to know of each task class that has prompts."""
        spec = self.suite.spec
        classes: list[TaskClass] = []
        for name, skipped in self.skipped.items():
            prompts = self.of_class(name)
            if not prompts:
                continue
            floor = _chance(prompts) if spec.floor == "chance" else spec.floor
            classes.append(
                TaskClass(
                    name=name,
                    suite=spec.name,
                    kind=spec.kind,
                    lang=prompts[0].item.lang,
                    item_ids=tuple(prompt.item.id for prompt in prompts),
                    skipped=skipped,
                    metrics=tuple(spec.metrics),
                    primary=spec.primary,
                    floor=floor,
                )
            )
        return classes


def _chance(prompts: list[Rendered]) -> float:
    """The accuracy of drawing a label at random."""
    return sum(1 / len(prompt.label_ids) for prompt in prompts) / len(prompts)


def prepare(suite: Suite, reader: Reader, limits: Limits, seed: int) -> Prepared:
    """The drawn items of each task class, rendered, without those that do not fit."""
    prompts: list[Rendered] = []
    skipped: dict[str, int] = {}
    for name, items in suite.by_class().items():
        chosen = sub_sample(items, limits.of(name), seed)
        rendered = [render(suite.spec.prompt[i.lang], i, reader.tokenizer) for i in chosen]
        fitting = [found for found in rendered if _fits(suite, found, reader.max_positions)]
        skipped[name] = len(rendered) - len(fitting)
        prompts += fitting
    return Prepared(suite, prompts, skipped)


def _fits(suite: Suite, prompt: Rendered, positions: int) -> bool:
    if isinstance(prompt.item, ClassificationItem):
        new = max(map(len, prompt.label_ids))
    else:
        new = suite.spec.decoding.max_new_tokens
    return len(prompt.prompt_ids) + new <= positions


def other_prompts(prepared: Prepared, tokenizer: Any) -> list[str]:
    """Ids of the items for which another tokenizer gives other token ids."""
    spec = prepared.suite.spec
    return [
        prompt.item.id
        for prompt in prepared.prompts
        if render(spec.prompt[prompt.item.lang], prompt.item, tokenizer) != prompt
    ]


def noise_prompts(prepared: Prepared) -> list[Rendered]:
    """Some prompts of each task class, in reverse order so that they meet other neighbours."""
    long = prepared.suite.spec.kind == "long_generation"
    most = _NOISE_LONG_ITEMS if long else _NOISE_SHORT_ITEMS
    chosen: set[str] = set()
    for name in prepared.skipped:
        items = [prompt.item for prompt in prepared.of_class(name)]
        chosen |= {item.id for item in sub_sample(items, most, seed=0)}
    return [prompt for prompt in reversed(prepared.prompts) if prompt.item.id in chosen]
