"""A candidate: a model folder that is loaded and can answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from qdeploy.runtime import generate, score
from qdeploy.runtime.generate import Generation
from qdeploy.runtime.model import DEFAULT_BATCH_TOKENS, LoadedModel

__all__ = ["Candidate", "Generation"]


@dataclass(frozen=True, eq=False)
class Candidate(LoadedModel):
    """A loaded model together with what identifies it."""

    source: str
    """The folder as given."""
    format: str
    """'bf16', 'fp16', 'fp32' or 'compressed-tensors/int-quantized'."""
    runtime: str
    """How products are computed."""
    weights_digest: str
    """`Checkpoint.digest`; another one where `precision` rounded any weight."""
    weights_bytes: int
    """Bytes of the weights in the candidate's format."""
    manifest_matches: bool | None
    """Whether the weights are those that quant_manifest.json describes; None: no manifest."""

    def generate(
        self,
        prompts: list[list[int]],
        *,
        max_new_tokens: int,
        stop: list[str],
        on_done: Callable[[int, Generation], None],
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
    ) -> None:
        """Answer greedily; see `runtime.generate.generate`."""
        generate.generate(
            self,
            prompts,
            max_new_tokens=max_new_tokens,
            stop=stop,
            on_done=on_done,
            batch_tokens=batch_tokens,
        )

    def label_logprobs(
        self,
        prompts: list[list[int]],
        labels: list[list[list[int]]],
        *,
        on_done: Callable[[int, list[float]], None],
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
    ) -> None:
        """Score labels after prompts; see `runtime.score.label_logprobs`."""
        score.label_logprobs(self, prompts, labels, on_done=on_done, batch_tokens=batch_tokens)

    def log_probs(self, ids: list[int]) -> Tensor:
        """Teacher-forced log-softmax [T, V]; see `runtime.score.log_probs`."""
        return score.log_probs(self, ids)
