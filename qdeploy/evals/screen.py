"""Teacher-forced comparison on the baseline's own answers: screens out broken files.

Both models read the same tokens, so this sees damage in every token and not only where an answer
flips. It says that a file is broken, or that it is not; near the baseline it does not say which of
two good files is better, and no choice is made by it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qdeploy.core.errors import InputError
from qdeploy.evals.results import ScreenResult
from qdeploy.runtime.blocks import block_errors
from qdeploy.runtime.candidate import Candidate

_ANSWER_TOKENS = 128
_BLOCK_TOKENS = 256


@dataclass(frozen=True)
class ScreenText:
    """A prompt with the baseline's answer."""

    prompt_ids: list[int]
    answer_ids: list[int]


def choose_texts(texts: dict[str, list[ScreenText]], budget: int) -> list[ScreenText]:
    """Texts of all task classes in turn until `budget` answer tokens are reached.

    An answer gives its first 128 tokens at most; empty answers are left out.
    """
    chosen: list[ScreenText] = []
    tokens = 0
    queues = {name: [text for text in found if text.answer_ids] for name, found in texts.items()}
    for turn in range(max(map(len, queues.values()), default=0)):
        for queue in queues.values():
            if turn < len(queue) and tokens < budget:
                answer = queue[turn].answer_ids[: min(_ANSWER_TOKENS, budget - tokens)]
                chosen.append(ScreenText(queue[turn].prompt_ids, answer))
                tokens += len(answer)
    return chosen


def screen(baseline: Candidate, candidate: Candidate, texts: list[ScreenText]) -> ScreenResult:
    """KL(baseline || candidate) and top-1 agreement over the answers' tokens, error per block.

    Raises InputError for no texts or another vocabulary, RunError for NaN or infinity.
    """
    if not texts:
        raise InputError(f"{candidate.name}: the baseline answered nothing to screen with")
    divergences: list[Tensor] = []
    agreements: list[Tensor] = []
    for text in texts:
        ids = text.prompt_ids + text.answer_ids
        # Position t predicts token t + 1, so the answer is predicted from the prompt's last token.
        answer = slice(len(text.prompt_ids) - 1, len(ids) - 1)
        base_TV = baseline.log_probs(ids)[answer]
        other_TV = candidate.log_probs(ids)[answer]
        if base_TV.shape != other_TV.shape:
            raise InputError(
                f"{candidate.name} has {other_TV.shape[-1]} tokens in its vocabulary, "
                f"the baseline {base_TV.shape[-1]}: they cannot be compared"
            )
        divergences.append(kl_divergence(base_TV, other_TV))
        agreements.append(base_TV.argmax(-1) == other_TV.argmax(-1))
    kl_T = torch.cat(divergences)
    longest = max(texts, key=lambda text: len(text.prompt_ids) + len(text.answer_ids))
    ids = (longest.prompt_ids + longest.answer_ids)[:_BLOCK_TOKENS]
    errors = block_errors(
        baseline.model, candidate.model, torch.tensor([ids], device=baseline.device)
    )
    return ScreenResult(
        candidate=candidate.name,
        tokens=kl_T.numel(),
        kl_mean=float(kl_T.mean()),
        kl_p99=float(kl_T.quantile(0.99)),
        top1_agreement=float(torch.cat(agreements).double().mean()),
        block_errors=errors.blocks,
        layer_errors=errors.layers,
    )


def kl_divergence(base_TV: Tensor, other_TV: Tensor) -> Tensor:
    """KL(base || other) in nats for each row of log-probabilities, in float64; never below 0."""
    base, other = base_TV.double(), other_TV.double()
    terms = base.exp() * (base - other)
    return torch.where(base.isneginf(), torch.zeros_like(terms), terms).sum(-1).clamp_(min=0)
