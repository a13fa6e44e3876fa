"""Losses on whole logits against the live bytes of their operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from qdeploy.plan.losses import LossRun, find_loss
from qdeploy.trace.live import LiveBytes

TOKENS, VOCABULARY, HIDDEN = 60, 500, 8


def peak_a_logit(dtype: Any, loss: Callable[[Any, Any], Any], *, held: bool) -> float:
    """Peak bytes of head, loss and backward pass, by a logit, without what the head takes."""
    kind = {"dtype": dtype, "device": "meta", "requires_grad": True}
    states, weight = torch.empty(TOKENS, HIDDEN, **kind), torch.empty(VOCABULARY, HIDDEN, **kind)
    labels = torch.empty(TOKENS, dtype=torch.int64, device="meta")
    with LiveBytes([states, weight, labels]) as live:
        logits = torch.nn.functional.linear(states, weight)
        value = loss(logits, labels)
        if not held:
            del logits
        value.backward()
    return live.peak_since(0, ()) / (TOKENS * VOCABULARY)


def stock(logits: Any, labels: Any) -> Any:
    from transformers.loss.loss_utils import ForCausalLMLoss

    return ForCausalLMLoss(logits[None], labels[None], VOCABULARY)


def formula(name: str, element: int) -> float:
    run = LossRun(TOKENS, VOCABULARY, HIDDEN, element, head_trained=True)
    return find_loss(name).loss_bytes(run) / (TOKENS * VOCABULARY)


def test_stock_loss_holds_fp32_logits() -> None:
    assert peak_a_logit(torch.float32, stock, held=True) == pytest.approx(16, rel=0.01)
    assert formula("hf", 4) == formula("hf", 2) == 16


def test_stock_loss_with_16_bit_logits_held_and_let_go() -> None:
    assert peak_a_logit(torch.bfloat16, stock, held=True) == pytest.approx(14, rel=0.01)
    for dtype in (torch.bfloat16, torch.float32):
        assert peak_a_logit(dtype, stock, held=False) == pytest.approx(12, rel=0.01)
    assert formula("upcast", 2) == 12


@pytest.mark.parametrize(("dtype", "element"), [(torch.bfloat16, 2), (torch.float32, 4)])
def test_plain(dtype: Any, element: int) -> None:
    found = peak_a_logit(dtype, torch.nn.functional.cross_entropy, held=True)
    assert found == pytest.approx(formula("plain", element), rel=0.01)
