"""Every worked number of the rule of thumb, in decimal GB."""

from __future__ import annotations

import pytest

from qdeploy.core.errors import InputError
from qdeploy.plan import PlanRequest, plan
from qdeploy.plan.accounting.article import rough_activations_bytes
from qdeploy.plan.job import make_job
from qdeploy.plan.schema import Candidate

GB = 10**9
STATES = ("weights_bytes", "master_weights_bytes", "gradients_bytes", "optimizer_bytes")


def candidate(model: str = "7B", gpus: int = 1, **fields: object) -> Candidate:
    request = {
        "model": model, "gpu": "A100-80GB", "gpus": gpus, "checkpointing": False,
        "accounting": "article", "offload": "none", "strategy": "none" if gpus == 1 else "ddp",
    }  # fmt: skip
    result = plan(PlanRequest(**{**request, **fields}))  # type: ignore[arg-type]
    assert len(result.candidates) == 1
    return result.candidates[0]


def states_gb(one: Candidate) -> float:
    return sum(getattr(one.per_gpu, name) for name in STATES) / GB


@pytest.mark.parametrize(("model", "gb"), [("7B", 14), ("13B", 26), ("70B", 140)])
def test_16_bit_weights(model: str, gb: int) -> None:
    assert candidate(model).per_gpu.weights_bytes == gb * GB


@pytest.mark.parametrize(("model", "gb"), [("7B", 28), ("13B", 52), ("70B", 280)])
def test_fp32_weights(model: str, gb: int) -> None:
    assert candidate(model, precision="fp32").per_gpu.weights_bytes == gb * GB


def test_parts_of_7b() -> None:
    parts = candidate().per_gpu
    assert parts.weights_bytes + parts.master_weights_bytes == 42 * GB
    assert parts.gradients_bytes == 42 * GB
    assert parts.optimizer_bytes == 56 * GB


def test_fp32_adamw_and_sgd() -> None:
    assert states_gb(candidate(precision="fp32")) == 112
    assert states_gb(candidate(precision="fp32", optimizer="sgd")) == 56


@pytest.mark.parametrize(
    ("model", "states", "activations", "total", "cards"),
    [("7B", 140, 4, 144, 2), ("13B", 260, 8, 268, 4), ("70B", 1400, 40, 1440, 18)],
)
def test_totals_and_least_cards(
    model: str, states: int, activations: int, total: int, cards: int
) -> None:
    one = candidate(model)
    assert states_gb(one) == states
    assert one.per_gpu.activations_bytes == activations * GB
    assert one.per_gpu.total_bytes == total * GB
    assert -(-one.per_gpu.total_bytes // (80 * GB)) == cards


def test_70b_fits_sharded_on_20_cards_with_room_but_not_on_8() -> None:
    def fits(gpus: int, nodes: int) -> bool:
        return candidate("70B", gpus, nodes=nodes, strategy="zero3", checkpointing=True).fits

    assert not fits(8, 1)
    assert fits(5, 4)


def test_rough_activations() -> None:
    request = PlanRequest(model="llama-7b", gpu="A100-80GB", seq_len=2048)
    assert rough_activations_bytes(make_job(request)) == 2048 * 4096 * 32 * 2
    assert candidate(checkpointing=True).per_gpu.activations_bytes == pytest.approx(
        0.5 * GB, rel=0.1
    )


def test_activations_are_linear_in_batch_and_length() -> None:
    one = candidate().per_gpu.activations_bytes
    assert candidate(micro_batch=8).per_gpu.activations_bytes == 8 * one
    assert candidate(seq_len=4096).per_gpu.activations_bytes == 2 * one


def test_7b_on_two_cards() -> None:
    zero2 = candidate(gpus=2, strategy="zero2")
    assert states_gb(zero2) == 14 + 28 + 14 / 2 + 28 / 2 + 56 / 2 == 91
    assert not zero2.fits
    zero3 = candidate(gpus=2, strategy="zero3")
    assert states_gb(zero3) == 70
    assert zero3.per_gpu.total_bytes == 74 * GB
    assert zero3.fits
    offloaded = candidate(gpus=2, strategy="zero3", offload="optimizer")
    assert offloaded.per_gpu.total_bytes == pytest.approx(50 * GB, rel=0.1)


def test_7b_on_four_cards_fits_zero2() -> None:
    zero2 = candidate(gpus=4, strategy="zero2")
    assert zero2.per_gpu.total_bytes == (14 + 28 + 42 / 4 + 56 / 4 + 4) * GB
    assert zero2.fits


def test_single_card_does_not_fit() -> None:
    assert not candidate().fits
    assert not candidate(seq_len=1024).fits


def test_headroom_is_20_percent() -> None:
    one = candidate()
    assert one.per_gpu.high_bytes == one.per_gpu.total_bytes * 120 // 100


@pytest.mark.parametrize(
    "fields", [{"peft": "lora"}, {"precision": "bf16-pure"}, {"gpus": 2, "offload": "all"}]
)
def test_refuses_what_the_rule_does_not_say(fields: dict[str, object]) -> None:
    strategy = "zero3" if "offload" in fields else "none"
    with pytest.raises(InputError, match="rule of thumb says nothing"):
        candidate(**{"strategy": strategy, **fields})  # type: ignore[arg-type]


def test_difference_to_deepspeed_is_explained() -> None:
    both = [
        plan(PlanRequest(model="7B", gpu="A100-80GB", gpus=2, accounting=name))
        for name in ("article", "deepspeed")
    ]
    assert all("masters" in result.notes[0] for result in both)
