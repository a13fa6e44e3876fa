"""Label scores and teacher-forced log-probabilities against plain forward passes."""

from __future__ import annotations

import pytest
import torch

from qdeploy.core.errors import InputError, RunError
from qdeploy.runtime.score import label_logprobs, log_probs

FAMILIES = ("llama", "qwen2", "gemma3_text", "gpt2")
LABELS = [[5], [7, 8, 9], [11, 12], [5, 6, 7, 8, 9, 10, 11, 12, 13]]


def naive(model, prompt: list[int], label: list[int]) -> float:
    logits_TV = model(input_ids=torch.tensor([prompt + label])).logits[0].double()
    logp_TV = logits_TV.log_softmax(-1)
    return sum(float(logp_TV[len(prompt) - 1 + i, token]) for i, token in enumerate(label))


def scores(loaded, prompts, labels, **options) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    label_logprobs(loaded, prompts, labels, on_done=found.__setitem__, **options)
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch_tokens", [1, 200, 8192])
def test_labels_equal_plain_forward(random_model, mixed_prompts, family, batch_tokens):
    loaded = random_model(family)
    labels = [LABELS[i % 4 :] + LABELS[: i % 3] for i in range(len(mixed_prompts))]
    found = scores(loaded, mixed_prompts, labels, batch_tokens=batch_tokens)
    assert sorted(found) == list(range(len(mixed_prompts)))
    for index, (prompt, choices) in enumerate(zip(mixed_prompts, labels, strict=True)):
        expected = [naive(loaded.model, prompt, label) for label in choices]
        assert found[index] == pytest.approx(expected, abs=2e-3, rel=1e-5)


def test_one_token_labels_need_no_second_pass(random_model):
    loaded = random_model("llama")
    found = scores(loaded, [[5, 6], [7]], [[[3], [4]], [[9]]])
    assert found[0] == pytest.approx([naive(loaded.model, [5, 6], [t]) for t in (3, 4)], abs=1e-3)
    assert found[1] == pytest.approx([naive(loaded.model, [7], [9])], abs=1e-3)


@pytest.mark.parametrize(
    ("prompts", "labels", "message"),
    [
        ([[5]], [[]], "no labels"),
        ([[5]], [[[1], []]], "without tokens"),
        ([[5], [6]], [[[1]]], "2 prompts but 1"),
        ([[]], [[[1]]], "no tokens"),
        ([[5] * 120], [[[1] * 9]], "positions"),
    ],
)
def test_refused(random_model, prompts, labels, message):
    with pytest.raises(InputError, match=message):
        scores(random_model("llama"), prompts, labels)


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_equal_forward(random_model, mixed_prompts, family):
    loaded = random_model(family)
    ids = mixed_prompts[1]
    logp_TV = log_probs(loaded, ids)
    assert logp_TV.dtype == torch.float32
    assert logp_TV.shape == (len(ids), len(loaded.tokenizer))
    logits_TV = loaded.model(input_ids=torch.tensor([ids])).logits[0]
    assert torch.equal(logp_TV, logits_TV.log_softmax(-1))
    with pytest.raises(InputError, match="no tokens"):
        log_probs(loaded, [])


def test_nan_is_an_error(random_model):
    loaded = random_model("llama")
    loaded.model.lm_head.weight.data[3] = float("nan")
    with pytest.raises(RunError, match="tiny"):
        log_probs(loaded, [5, 6])
    with pytest.raises(RunError, match="tiny"):
        scores(loaded, [[5]], [[[1]]])
