"""One candidate answers one suite: prompts in, samples on disk out."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from qdeploy.evals.items import ClassificationItem, ExtractionItem
from qdeploy.evals.json_answer import find_object
from qdeploy.evals.loops import loop_onset
from qdeploy.evals.metrics.replacement_chars import REPLACEMENT
from qdeploy.evals.render import Rendered
from qdeploy.evals.results import Sample
from qdeploy.evals.samples import SampleFile
from qdeploy.evals.scoring import Context, Output, score_all
from qdeploy.evals.suite import Suite
from qdeploy.evals.text import final_answer


class Answer(Protocol):
    """`runtime.Generation`: one generated answer."""

    @property
    def token_ids(self) -> list[int]:
        """All generated tokens, an ending one included."""

    @property
    def text(self) -> str:
        """The decoded answer."""

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        """Why it ended."""


class Model(Protocol):
    """What answering needs of a `runtime.Candidate`."""

    @property
    def tokenizer(self) -> Any:
        """A Hugging Face tokenizer."""

    def generate(
        self,
        prompts: list[list[int]],
        *,
        max_new_tokens: int,
        stop: list[str],
        on_done: Callable[[int, Any], None],
        batch_tokens: int,
    ) -> None:
        """Greedy answers."""

    def label_logprobs(
        self,
        prompts: list[list[int]],
        labels: list[list[list[int]]],
        *,
        on_done: Callable[[int, list[float]], None],
        batch_tokens: int,
    ) -> None:
        """Sums of log-probabilities of labels."""


@dataclass(frozen=True)
class Ask:
    """How a suite is put to a candidate."""

    batch_tokens: int
    baseline: Mapping[str, Sample] | None = None
    """The baseline's samples by item; None while the baseline itself answers."""
    on_step: Callable[[], None] = lambda: None
    """Called after each sample."""


def prompt_hash(ids: list[int]) -> str:
    """sha256 of token ids."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


def answer_suite(
    model: Model, suite: Suite, prompts: list[Rendered], file: SampleFile, ask: Ask
) -> list[str]:
    """Answer what `file` does not hold yet; 'ITEM: METRIC' of every score that is no number."""
    todo = [prompt for prompt in prompts if prompt.item.id not in file.done]
    broken: list[str] = []
    began = time.monotonic()

    def keep(index: int, output: Output) -> None:
        sample, bad = _sample(suite, todo[index], output, ask.baseline)
        broken.extend(f"{sample.id}: {name}" for name in bad)
        file.add(sample)
        ask.on_step()

    try:
        if todo and suite.spec.kind == "classification":
            _score_labels(model, todo, ask, keep)
        elif todo:
            _generate(model, suite, todo, ask, keep)
    finally:
        file.seconds += time.monotonic() - began
    return broken


def _generate(
    model: Model,
    suite: Suite,
    todo: list[Rendered],
    ask: Ask,
    keep: Callable[[int, Output], None],
) -> None:
    special = set(model.tokenizer.all_special_ids)

    def on_done(index: int, answer: Answer) -> None:
        ids = list(answer.token_ids)
        while ids and answer.finish_reason == "stop" and ids[-1] in special:
            ids.pop()
        keep(index, Output(answer.text, ids, answer.finish_reason))

    model.generate(
        [prompt.prompt_ids for prompt in todo],
        max_new_tokens=suite.spec.decoding.max_new_tokens,
        stop=suite.spec.decoding.stop,
        on_done=on_done,
        batch_tokens=ask.batch_tokens,
    )


def _score_labels(
    model: Model, todo: list[Rendered], ask: Ask, keep: Callable[[int, Output], None]
) -> None:
    def on_done(index: int, sums: list[float]) -> None:
        item = todo[index].item
        assert isinstance(item, ClassificationItem)
        lengths = map(len, todo[index].label_ids)
        means = [total / length for total, length in zip(sums, lengths, strict=True)]
        likeliest = item.labels[max(range(len(means)), key=means.__getitem__)]
        keep(index, Output(likeliest, [], "scored", means))

    model.label_logprobs(
        [prompt.prompt_ids for prompt in todo],
        [prompt.label_ids for prompt in todo],
        on_done=on_done,
        batch_tokens=ask.batch_tokens,
    )


def _sample(
    suite: Suite, prompt: Rendered, output: Output, baseline: Mapping[str, Sample] | None
) -> tuple[Sample, list[str]]:
    item = prompt.item
    if baseline is None:
        baseline_tokens: int | None = len(output.token_ids)
    else:
        baseline_tokens = baseline[item.id].output_tokens if item.id in baseline else None
    context = Context(item.lang, baseline_tokens)
    scores, broken = score_all(suite.spec.metrics, output, item, context)
    sample = Sample(
        id=item.id,
        task_class=suite.task_class(item),
        lang=item.lang,
        cluster=item.cluster,
        prompt_hash=prompt_hash(prompt.prompt_ids),
        prompt_tokens=len(prompt.prompt_ids),
        prompt=item.question,
        reference=item.reference,
        output=output.text,
        finish_reason=output.finish_reason,
        output_tokens=len(output.token_ids),
        flags=_flags(output, prompt),
        scores=scores,
        loop_onset=loop_onset(output.token_ids, output.text) if output.token_ids else None,
    )
    return sample, broken


def _flags(output: Output, prompt: Rendered) -> list[str]:
    flags = []
    if not final_answer(output.text):
        flags.append("empty")
    if output.finish_reason == "length":
        flags.append("cut")
    if isinstance(prompt.item, ExtractionItem) and find_object(final_answer(output.text)) is None:
        flags.append("extraction_failed")
    if REPLACEMENT in output.text:
        flags.append("replacement_char")
    return flags
