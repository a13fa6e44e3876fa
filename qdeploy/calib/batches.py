"""A calibration set: a seeded sample of the data as padded batches of token ids.

`samples` is the number of sequences, each of at most `max_seq_len` tokens, so it bounds the work.
Rows are drawn without replacement. A longer row is never dropped: it is cut into chunks of nearly
equal length, so that no chunk is a stub of a few tokens. Each drawn row gives one chunk, chosen
by the seed (the answers to long prompts lie in the later ones); if there are fewer rows than
samples, further chunks fill the rest.

The same data, tokenizer and settings give the same set on every platform: of Python's generator
only `random()` is used, the one method whose sequence is promised not to change.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from qdeploy.calib.data import Conversation, data_files, read_file
from qdeploy.calib.template import token_ids
from qdeploy.core.artifacts import sha256_file
from qdeploy.core.console import warn
from qdeploy.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")


@dataclass(frozen=True)
class CalibBatch:
    """B sequences of at most T tokens; padding is on the right and known by length alone."""

    input_ids: Tensor
    """[B, T] int64."""
    attention_mask: Tensor
    """[B, T] int64: 1 for a token, 0 for padding."""


@dataclass(frozen=True)
class CalibrationSet:
    """What a model is calibrated on."""

    batches: list[CalibBatch]
    """Longest sequences first, so that the largest batch shows early whether memory suffices."""
    samples: int
    """Sequences in all batches."""
    tokens: int
    """Real tokens, padding not counted."""
    digest: str
    """sha256 over the settings and the token ids of all samples in order."""
    files: dict[str, str]
    """Data file, relative to the data folder -> its sha256."""
    seed: int
    max_seq_len: int
    truncated: int
    """Drawn rows longer than `max_seq_len`, cut into chunks."""
    rows: int = 0
    """Rows in the data."""
    drawn_rows: int = 0
    """Rows that gave at least one sample."""
    left_out_chunks: int = 0
    """Chunks of the drawn rows beyond `samples`."""


@dataclass(frozen=True)
class _Drawn:
    sequences: list[list[int]]
    rows: int
    truncated: int
    left_out_chunks: int


def calibration_set(
    data: Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    samples: int = 128,
    max_seq_len: int = 512,
    batch_size: int = 8,
    seed: int = 0,
) -> CalibrationSet:
    """Read `data` (a file or folder), draw `samples` sequences and batch them by length.

    With fewer sequences than asked for, all are used and a warning says so. Raises InputError
    for bad settings, malformed data, a chat that the tokenizer cannot render, and zero tokens.
    """
    settings = {"samples": samples, "max_seq_len": max_seq_len, "batch_size": batch_size}
    for name, value in settings.items():
        if value < 1:
            raise InputError(f"calibration: {name} must be at least 1, found {value}")
    files = data_files(data)
    conversations = [row for file in files for row in read_file(file)]
    drawn = _draw(conversations, tokenizer, samples=samples, max_seq_len=max_seq_len, seed=seed)
    if not drawn.sequences:
        raise InputError(
            f"{data}: {len(conversations)} rows gave no tokens",
            hint="check that the tokenizer belongs to the model and knows the data's script",
        )
    if len(drawn.sequences) < samples:
        warn(
            f"{data} gives {len(drawn.sequences)} calibration samples, fewer than the {samples} "
            "asked for: all are used"
        )
    ordered = sorted(drawn.sequences, key=len, reverse=True)
    return CalibrationSet(
        batches=[
            _batch(ordered[start : start + batch_size], tokenizer)
            for start in range(0, len(ordered), batch_size)
        ],
        samples=len(ordered),
        tokens=sum(len(ids) for ids in ordered),
        digest=_digest(ordered, {**settings, "seed": seed}),
        files={_name(file, data): sha256_file(file) for file in files},
        seed=seed,
        max_seq_len=max_seq_len,
        truncated=drawn.truncated,
        rows=len(conversations),
        drawn_rows=drawn.rows,
        left_out_chunks=drawn.left_out_chunks,
    )


def chunks(ids: list[int], max_seq_len: int) -> list[list[int]]:
    """`ids` in the fewest pieces of at most `max_seq_len`, lengths equal to within one."""
    pieces = -(-len(ids) // max_seq_len)
    bounds = [len(ids) * piece // pieces for piece in range(pieces + 1)] if pieces else []
    return [ids[start:end] for start, end in pairwise(bounds)]


def _draw(
    conversations: list[Conversation],
    tokenizer: PreTrainedTokenizerBase,
    *,
    samples: int,
    max_seq_len: int,
    seed: int,
) -> _Drawn:
    generator = random.Random(seed)  # noqa: S311 (a sample, no secret)
    first: list[list[int]] = []
    further: list[list[int]] = []
    truncated = 0
    for row in _shuffled(conversations, generator):
        if len(first) == samples:
            break
        pieces = chunks(token_ids(row, tokenizer), max_seq_len)
        if not pieces:
            continue
        truncated += len(pieces) > 1
        first.append(pieces.pop(int(generator.random() * len(pieces))))
        further += pieces
    fill = _shuffled(further, generator)[: samples - len(first)]
    return _Drawn(first + fill, len(first), truncated, len(further) - len(fill))


def _shuffled(items: list[T], generator: random.Random) -> list[T]:
    keys = [generator.random() for _ in items]
    return [items[index] for index in sorted(range(len(items)), key=keys.__getitem__)]


def _batch(sequences: list[list[int]], tokenizer: PreTrainedTokenizerBase) -> CalibBatch:
    import torch

    # Any id that is not eos: padding is told by the mask, and a mask made elsewhere from
    # `ids != eos` must not hide real ends of text.
    pad = 1 if tokenizer.eos_token_id == 0 else 0
    longest = max(len(ids) for ids in sequences)
    return CalibBatch(
        input_ids=torch.tensor([ids + [pad] * (longest - len(ids)) for ids in sequences]),
        attention_mask=torch.tensor(
            [[1] * len(ids) + [0] * (longest - len(ids)) for ids in sequences]
        ),
    )


def _digest(sequences: list[list[int]], settings: dict[str, int]) -> str:
    digest = hashlib.sha256(repr(sorted(settings.items())).encode())
    for ids in sequences:
        digest.update(b"\n" + ",".join(map(str, ids)).encode())
    return digest.hexdigest()


def _name(file: Path, data: Path) -> str:
    return file.name if file == data else file.relative_to(data).as_posix()
