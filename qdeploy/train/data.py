"""A recipe's data as tokenized samples, ready for TRL's trainer."""

from __future__ import annotations

import hashlib
import random
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from qdeploy.calib.data import Conversation, read_data
from qdeploy.calib.template import load_tokenizer
from qdeploy.core.errors import InputError
from qdeploy.train.labels import Sample, sample_of
from qdeploy.train.recipe import Recipe

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Counts:
    """What became of the rows of one data set."""

    rows: int
    samples: int
    """Rows that are trained on."""
    sequences: int
    """What a micro-batch is made of: samples, or with packing what they were packed into."""
    tokens: int
    counted_tokens: int
    """Tokens of the loss."""
    cut: int
    """Samples longer than `seq_len`, of which the rest is left out."""
    dropped: int
    """Rows without a token for the loss within `seq_len`."""


@dataclass(frozen=True)
class Prepared:
    """Data sets of a run."""

    train: Dataset
    evaluation: Dataset | None
    counts: Counts
    digest: str
    """sha256 over ids and labels of both sets, in order."""


def run_tokenizer(recipe: Recipe, folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of `folder` with the recipe's chat template.

    Raises InputError for a missing tokenizer, and for a template that cannot be read or parsed.
    """
    tokenizer = load_tokenizer(folder)
    if recipe.data.chat_template is not None:
        path = Path(recipe.data.chat_template).expanduser()
        try:
            tokenizer.chat_template = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"cannot read data.chat_template {path}: {error}",
                hint="give a Jinja file in UTF-8, or leave the key out for the tokenizer's own",
            ) from None
        _check_template(tokenizer, path)
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise InputError(
                f"the tokenizer of {folder} has neither a pad_token nor an eos_token",
                hint="name one in tokenizer_config.json",
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def prepare(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> Prepared:
    """Training and evaluation data as tokens.

    Raises InputError for data that cannot be read, for a chat without a template, and when
    nothing is left to train on.
    """
    rows = read_data(Path(recipe.data.path).expanduser())
    held_out: list[Conversation] = []
    if recipe.eval.path is not None:
        held_out = read_data(Path(recipe.eval.path).expanduser())
    elif recipe.eval.share:
        rows, held_out = _split(rows, recipe)
    train, counts = _tokenized(rows, recipe, tokenizer, recipe.data.path)
    _check_enough(counts, recipe)
    evaluation: Dataset | None = None
    digest = _digest([train])
    if held_out:
        name = recipe.eval.path or f"the {recipe.eval.share:.0%} of {recipe.data.path} kept for it"
        evaluation, _ = _tokenized(held_out, recipe, tokenizer, name)
        digest = _digest([train, evaluation])
    return Prepared(train, evaluation, counts, digest)


def _tokenized(
    rows: list[Conversation], recipe: Recipe, tokenizer: PreTrainedTokenizerBase, name: str
) -> tuple[Dataset, Counts]:
    from datasets import Dataset

    limit = recipe.data.seq_len
    only = recipe.data.assistant_only_loss
    whole = [sample_of(row, tokenizer, assistant_only=only) for row in rows]
    kept = [sample for one in whole if (sample := one.cut(limit)).counted]
    if not kept:
        raise InputError(_nothing_left(whole, limit, name), hint=_nothing_hint(whole, limit))
    dataset = Dataset.from_dict(
        {
            "input_ids": [sample.input_ids for sample in kept],
            "labels": [sample.labels for sample in kept],
        }
    )
    if recipe.data.packing:
        dataset = _packed(dataset, limit)
    return dataset, Counts(
        rows=len(rows),
        samples=len(kept),
        sequences=len(dataset),
        tokens=sum(len(sample.input_ids) for sample in kept),
        counted_tokens=sum(sample.counted for sample in kept),
        cut=sum(len(sample.input_ids) > limit for sample in whole),
        dropped=len(rows) - len(kept),
    )


def _packed(dataset: Dataset, limit: int) -> Dataset:
    """TRL's best-fit-decreasing packing: samples stay whole and do not see each other."""
    import datasets
    from trl.data_utils import pack_dataset

    datasets.disable_progress_bars()
    packed: Dataset = pack_dataset(dataset, limit, "bfd")
    return packed


def _nothing_left(whole: list[Sample], limit: int, name: str) -> str:
    if any(sample.counted for sample in whole):
        shortest = min(len(sample.input_ids) for sample in whole)
        return (
            f"{name}: within data.seq_len {limit} no sample has a token for the loss; the "
            f"shortest has {shortest} tokens"
        )
    return f"{name}: no row has an answer of the assistant"


def _nothing_hint(whole: list[Sample], limit: int) -> str:
    if any(sample.counted for sample in whole):
        needed = min(_first_counted(sample) for sample in whole if sample.counted)
        return f"set data.seq_len to {max(needed, limit) + 1} or more, or shorten the questions"
    return 'give rows with an answer ("messages" with an assistant, or "prompt" and "response")'


def _first_counted(sample: Sample) -> int:
    return next(i for i, label in enumerate(sample.labels) if i and label >= 0)


def _split(
    rows: list[Conversation], recipe: Recipe
) -> tuple[list[Conversation], list[Conversation]]:
    """Training rows and a seeded draw of `eval.share` of all, at least one."""
    held = max(1, round(len(rows) * recipe.eval.share))
    if held >= len(rows):
        raise InputError(
            f"eval.share {recipe.eval.share:g} of {len(rows)} rows leaves nothing to train on",
            hint="lower it, or give the evaluation data as eval.path",
        )
    draw = random.Random(recipe.seed)  # noqa: S311 (a sample, no secret)
    chosen = set(draw.sample(range(len(rows)), held))
    return (
        [row for i, row in enumerate(rows) if i not in chosen],
        [row for i, row in enumerate(rows) if i in chosen],
    )


def _check_enough(counts: Counts, recipe: Recipe) -> None:
    if counts.sequences >= recipe.global_batch:
        return
    kind = "packed sequences" if recipe.data.packing else "samples"
    raise InputError(
        f"{recipe.data.path} gives {counts.sequences} {kind}, one optimizer step takes "
        f"{recipe.global_batch} (micro-batch {recipe.batch.micro_batch} x accumulation "
        f"{recipe.accumulation_steps} x {recipe.data_parallel} processes)",
        hint="give more data, or lower batch.accumulation_steps",
    )


def _check_template(tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    except TemplateError as error:
        raise InputError(f"data.chat_template {path} is no usable template: {error}") from None


def _digest(parts: list[Dataset]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"set")
        for row in part:
            for column in ("input_ids", "labels"):
                values: Any = row[column]
                digest.update(f"\n{column} {len(values)} ".encode())
                digest.update(array("q", values).tobytes())
    return digest.hexdigest()
