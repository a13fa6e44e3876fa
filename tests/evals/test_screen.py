import pytest
import torch

from qdeploy.core.errors import InputError
from qdeploy.evals import screen as screening
from qdeploy.evals.screen import ScreenText, choose_texts, kl_divergence, screen
from qdeploy.runtime.blocks import BlockErrors

from .fakes import FakeCandidate


def test_kl_by_the_definition() -> None:
    base = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]).log()
    other = torch.tensor([[0.25, 0.5, 0.25], [0.2, 0.3, 0.5]]).log()
    wanted = [0.5 * torch.tensor(2.0).log().item(), 0.0]
    assert kl_divergence(base, other).tolist() == pytest.approx(wanted, abs=1e-7)


def test_texts_take_turns_within_the_budget() -> None:
    texts = {
        "a": [ScreenText([1], [2] * 200), ScreenText([1], [3] * 200)],
        "b": [ScreenText([1], []), ScreenText([1], [4] * 10)],
    }
    chosen = choose_texts(texts, 150)
    assert [(t.answer_ids[0], len(t.answer_ids)) for t in chosen] == [(2, 128), (4, 10), (3, 12)]
    assert choose_texts({}, 10) == []


def test_only_answer_positions_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithModel(FakeCandidate):
        model = None

    monkeypatch.setattr(screening, "block_errors", lambda *_: BlockErrors([0.5], {"0.q": 0.25}))
    base = WithModel("bf16", str)
    other = WithModel("int8", str, shift_logits=9.0)
    text = ScreenText([5, 6, 7], [8, 9])
    result = screen(base, other, [text])  # type: ignore[arg-type]
    rows = [2, 3]
    ours, theirs = base.log_probs([0] * 5)[rows], other.log_probs([0] * 5)[rows]
    wanted = (ours.exp() * (ours - theirs)).sum(-1)
    assert result.tokens == 2
    assert result.kl_mean == pytest.approx(float(wanted.mean()), rel=1e-5)
    agree = (ours.argmax(-1) == theirs.argmax(-1)).float().mean()
    assert result.top1_agreement == pytest.approx(float(agree))
    assert result.block_errors == [0.5]
    assert result.layer_errors == {"0.q": 0.25}
    with pytest.raises(InputError, match="answered nothing"):
        screen(base, other, [])  # type: ignore[arg-type]
