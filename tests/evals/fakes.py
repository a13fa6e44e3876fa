"""A tokenizer, a candidate and small suites that need no model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml

from qdeploy.evals.items import ClassificationItem, LongGenerationItem, ShortQaItem
from qdeploy.evals.render import Rendered


class CharTokenizer:
    """One token per character; 0 begins and 1 ends a text."""

    chat_template = "chat"
    bos_token = "<s>"
    bos_token_id = 0
    all_special_ids = (0, 1)

    def __init__(self, shift: int = 2) -> None:
        self.shift = shift
        self.templated: list[dict[str, Any]] = []

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        assert options["tokenize"] is False
        assert options["add_generation_prompt"] is True
        return f"<s>{messages[0]['content']}\n"

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids = [0] if text.startswith("<s>") or add_special_tokens else []
        return ids + [ord(char) + self.shift for char in text.removeprefix("<s>")]


@dataclass
class FakeCandidate:
    """Answers by `answer(prompt text)`; scores labels by `label_score(label text)`."""

    name: str
    answer: Callable[[str], str]
    label_score: Callable[[str], float] = lambda label: -float(len(label))
    weights_digest: str = "w0"
    max_positions: int = 4000
    fail_after: int | None = None
    tokenizer: CharTokenizer = field(default_factory=CharTokenizer)
    manifest_matches: bool | None = None
    answered: int = 0
    source: str = "folder"
    format: str = "fp32"
    runtime: str = "fake"
    weights_bytes: int = 4
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    shift_logits: float = 0.0

    def text_of(self, ids: list[int]) -> str:
        return "".join(chr(i - self.tokenizer.shift) for i in ids if i > 1)

    def generate(
        self,
        prompts: list[list[int]],
        *,
        max_new_tokens: int,
        stop: list[str],
        on_done: Callable[[int, Any], None],
        batch_tokens: int = 1,
    ) -> None:
        for index, prompt in enumerate(prompts):
            if self.fail_after is not None and self.answered >= self.fail_after:
                raise KeyboardInterrupt
            text = self.answer(self.text_of(prompt))
            ended = len(text) < max_new_tokens
            ids = self.tokenizer.encode(text[:max_new_tokens], add_special_tokens=False)
            done = SimpleNamespace(
                token_ids=[*ids, 1] if ended else ids,
                text=text[:max_new_tokens],
                finish_reason="stop" if ended else "length",
            )
            self.answered += 1
            on_done(index, done)

    def label_logprobs(
        self,
        prompts: list[list[int]],
        labels: list[list[list[int]]],
        *,
        on_done: Callable[[int, list[float]], None],
        batch_tokens: int = 1,
    ) -> None:
        for index, choices in enumerate(labels):
            on_done(index, [self.label_score(self.text_of(ids)) for ids in choices])

    def log_probs(self, ids: list[int]) -> torch.Tensor:
        rows = torch.arange(len(ids))[:, None] + torch.arange(50)[None, :]
        logits = (rows % 7).float()
        logits[:, 3] += self.shift_logits
        return logits.log_softmax(-1)


def write_suite(folder: Path, spec: dict[str, Any], items: list[dict[str, Any]]) -> Path:
    """A suite on disk; `spec` overrides a valid short_qa suite's keys."""
    full = {
        "schema": "qdeploy.suite/1",
        "name": "qa",
        "kind": "short_qa",
        "version": 1,
        "license": "Apache-2.0",
        "description": "A test.",
        "data": "qa.jsonl",
        "prompt": {
            "en": "{{ context }} Q: {{ question }}",
            "zh": "{{ context }}问：{{ question }}",
        },
        "decoding": {"max_new_tokens": 20, "stop": []},
        "metrics": ["contains", "char_f1"],
        "primary": "contains",
        "floor": 0.1,
    } | spec
    path = folder / f"{full['name']}.yaml"
    path.write_text(yaml.safe_dump(full, allow_unicode=True), encoding="utf-8")
    lines = [json.dumps(item, ensure_ascii=False) for item in items]
    (folder / full["data"]).write_text("\n".join(lines), encoding="utf-8")
    return path


def qa_rows(count: int, lang: str = "en", per_cluster: int = 2) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{lang}-{i}",
            "lang": lang,
            "cluster": f"{lang}-c{i // per_cluster}",
            "context": f"The code of box {i} is k{i}x.",
            "question": f"Code of box {i}?",
            "answers": [f"k{i}x"],
        }
        for i in range(count)
    ]


def qa_item(*answers: str, lang: str = "en") -> ShortQaItem:
    return ShortQaItem.model_validate(
        {
            "id": "a",
            "lang": lang,
            "cluster": "c",
            "context": "x",
            "question": "q",
            "answers": answers,
        }
    )


def class_item(*labels: str, label: str) -> ClassificationItem:
    return ClassificationItem(
        id="a", lang="en", cluster="c", task="t", text="x", labels=list(labels), label=label
    )


def long_item(lang: str = "en", **demands: Any) -> LongGenerationItem:
    return LongGenerationItem.model_validate(
        {"id": "a", "lang": lang, "cluster": "c", "prompt": "write", "demands": demands}
    )


def rendered(item: Any) -> Rendered:
    return Rendered(item, [5, 6], [])
