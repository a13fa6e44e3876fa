"""Log-probabilities of given tokens: of labels after a prompt, and of whole texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qdeploy.core.errors import InputError
from qdeploy.runtime.model import DEFAULT_BATCH_TOKENS, LoadedModel, PaddedBatch, batches


@torch.no_grad()
def label_logprobs(
    loaded: LoadedModel,
    prompts: Sequence[list[int]],
    labels: Sequence[list[list[int]]],
    *,
    on_done: Callable[[int, list[float]], None],
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
) -> None:
    """For each prompt, the sum of log-probabilities of each label's token ids after it.

    A prompt is run once; its cache serves all labels. `on_done(index, sums)` as each prompt ends,
    sums in the order of `labels[index]`. Raises InputError for an empty label list, an empty label
    or a prompt that does not fit with its longest label, RunError for NaN or infinity.
    """
    _check_labels(loaded, prompts, labels)
    longest = [max(map(len, choices)) for choices in labels]
    loaded.check_prompts(prompts, longest)
    lengths = [len(prompt) + new for prompt, new in zip(prompts, longest, strict=True)]
    rows = [max(1, sum(len(label) > 1 for label in choices)) for choices in labels]
    for group in batches(lengths, rows, batch_tokens, max(longest, default=0)):
        sums = _run_batch(loaded, [prompts[i] for i in group], [labels[i] for i in group])
        for index, result in zip(group, sums, strict=True):
            on_done(index, result)


def _run_batch(
    loaded: LoadedModel, prompts: list[list[int]], labels: list[list[list[int]]]
) -> list[list[float]]:
    room = max(len(label) for choices in labels for label in choices) - 1
    batch = PaddedBatch(loaded, prompts, room)
    first_BV = _log_softmax(loaded, batch.prefill())
    sums = [
        [float(first_BV[row, label[0]]) for label in choices] for row, choices in enumerate(labels)
    ]
    longer = [
        (row, place, label)
        for row, choices in enumerate(labels)
        for place, label in enumerate(choices)
        if len(label) > 1
    ]
    if not longer:
        return sums
    logits_RTV = batch.extend([row for row, _, _ in longer], [label[:-1] for _, _, label in longer])
    for logits_TV, (row, place, label) in zip(logits_RTV, longer, strict=True):
        rest_TV = _log_softmax(loaded, logits_TV[: len(label) - 1])
        rest_T1 = rest_TV.gather(1, torch.tensor(label[1:], device=loaded.device)[:, None])
        sums[row][place] += float(rest_T1.double().sum())
    return sums


@torch.no_grad()
def log_probs(loaded: LoadedModel, ids: list[int]) -> Tensor:
    """Log-softmax [T, V] in float32; row t is the distribution of the token after `ids[: t + 1]`.

    Raises InputError when `ids` is empty or longer than the model's positions, RunError for NaN
    or infinity.
    """
    loaded.check_prompts([ids], [0])
    ids_1T = torch.tensor([ids], device=loaded.device)
    logits_TV = loaded.model(input_ids=ids_1T, use_cache=False).logits[0]
    return _log_softmax(loaded, logits_TV)


def _log_softmax(loaded: LoadedModel, logits: Tensor) -> Tensor:
    loaded.check_finite(logits.amax(-1))
    return logits.float().log_softmax(-1)


def _check_labels(
    loaded: LoadedModel, prompts: Sequence[list[int]], labels: Sequence[list[list[int]]]
) -> None:
    if len(prompts) != len(labels):
        raise InputError(f"{loaded.name}: {len(prompts)} prompts but {len(labels)} lists of labels")
    for index, choices in enumerate(labels):
        if not choices or not all(choices):
            raise InputError(
                f"{loaded.name}: prompt {index} has no labels or a label without tokens"
            )
