"""The Hugging Face trainer's list for a block, on numbers that can be followed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qdeploy.core.errors import InputError
from qdeploy.models.shape import ModelShape
from qdeploy.models.shipped_shapes import shipped_shape, shipped_shape_names
from qdeploy.plan.saved import BlockRun, saved_bytes
from qdeploy.plan.trainers import hf

H, F, A, D = 4096, 11008, 32, 128
LLAMA = shipped_shape("llama-2-7b").shape


def run(shape: ModelShape = LLAMA, **other: object) -> BlockRun:
    plain = BlockRun(
        shape=shape, moe=shape.moe_layers > 0, compute_bytes=2, residual_bytes=2, autocast=False,
        attention="flash", keys=2048, padded=False, trained=None, adapted=frozenset(),
    )  # fmt: skip
    return replace(plain, **other)  # type: ignore[arg-type]


def kept(block: BlockRun, tensor: int = 1, sequence: int = 1) -> int:
    return saved_bytes(block, hf.block(block), tensor=tensor, sequence=sequence)


def test_llama_by_hand() -> None:
    norm = 4 * H + 4 + 2 * H
    attention = 4 * (2 * A * D) + 4 * A
    assert kept(run()) == 2 * norm + 2 * (2 * H) + attention + 4 * (2 * F)


def test_llama_under_autocast_by_hand() -> None:
    norm = 4 * H + 4 + 4 * H
    attention = 4 * (2 * A * D) + 4 * A
    copies = 5 * (2 * H)  # q, k, v, gate and up each cast the norm's output
    block = run(autocast=True, residual_bytes=4)
    assert kept(block) == 2 * norm + copies + attention + 4 * (2 * F)


def test_frozen_weights_keep_no_input() -> None:
    frozen = run(trained=frozenset())
    # Without inputs of linears and normalised values; attention's output is the kernel's own.
    assert kept(run()) - kept(frozen) == 2 * (2 * H) + 2 * (2 * H) + 2 * F


def test_an_adapter_reads_a_cast_of_its_own() -> None:
    adapted = run(trained=frozenset(), adapted=frozenset({"q_proj", "k_proj"}), lora_rank=8)
    frozen = run(trained=frozenset())
    assert kept(adapted) - kept(frozen) == 2 * (4 * H + 4 * 8)
    autocast = replace(adapted, autocast=True)
    assert kept(autocast) - kept(replace(frozen, autocast=True)) == 2 * (2 * H + 2 * 8)


def test_tensor_parallelism_divides_the_inside_of_attention_and_mlp() -> None:
    inside = 4 * (2 * A * D) + 4 * A + 4 * (2 * F)
    assert kept(run(), tensor=8) == kept(run()) - inside + inside // 8
    assert kept(run(), tensor=8, sequence=8) == -(-(kept(run()) - inside) // 8) + inside // 8


def test_a_padded_batch_repeats_keys_and_keeps_a_bias() -> None:
    shape = shipped_shape("llama-3.1-8b").shape
    plain, padded = (run(shape, attention="sdpa", padded=value) for value in (False, True))
    repeated = 2 * 2 * (4096 - 1024)
    assert kept(padded) - kept(plain) == repeated + 2 * 2048


def test_mixture_keeps_k_rows_a_token_whatever_the_number_of_experts() -> None:
    shape = shipped_shape("mixtral-8x7b").shape
    more = shape.model_copy(update={"experts": 16})
    assert kept(run(more)) - kept(run(shape)) == 8 * 4  # probabilities alone
    one = shape.model_copy(update={"experts_per_token": 1})
    row = 2 * (2 * 4096 + 4 * 14336) + 3 * 8 + 4 + 8 + 4
    assert kept(run(shape)) - kept(run(one)) == row


def test_flash_attention_that_is_not_there() -> None:
    with pytest.raises(InputError, match="no flash attention for bloom"):
        hf.block(run(shipped_shape("bloom-560m").shape))


@pytest.mark.parametrize("name", shipped_shape_names())
def test_every_shipped_shape_is_counted(name: str) -> None:
    block = run(shipped_shape(name).shape, attention="eager", keys=1)
    assert kept(block) > 0
    assert hf.working_bytes(block) >= 0
