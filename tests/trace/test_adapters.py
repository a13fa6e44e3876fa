"""LoRA of the trace against peft's own layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from qdeploy.trace.activations import trace
from qdeploy.trace.adapters import Adapters
from qdeploy.trace.kept import KeptTensors

from .agreement import LOW_AUTOCAST, PURE
from .architectures import config

TARGETS = frozenset({"q_proj", "v_proj", "gate_proj", "down_proj"})


def kept_with_peft(sizes: dict[str, Any], *, autocast: bool) -> int:
    """Bytes that the last block keeps on a CPU, with real weights and peft's adapters."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    base = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**sizes), dtype=torch.bfloat16, attn_implementation="eager"
    )
    lora = LoraConfig(r=4, target_modules=sorted(TARGETS))
    model = get_peft_model(base, lora).train()
    tensors, ids = KeptTensors(model), torch.zeros((2, 24), dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), tensors.watch():
        model(input_ids=ids, use_cache=False)
    # Casts of the adapters' own weights have no tokens in their shape.
    rank_sized = [
        entry for entry in tensors.found()
        if "lora_" in entry.module and entry.shape[0] not in (2, 48)
    ]  # fmt: skip
    last = [entry for entry in tensors.found() if ".layers.1" in entry.module]
    return sum(entry.bytes for entry in last if entry not in rank_sized)


@pytest.mark.parametrize("autocast", [False, True], ids=["bf16", "autocast"])
def test_peft_keeps_what_the_trace_says(autocast: bool) -> None:
    sizes = config("llama")
    run = replace(LOW_AUTOCAST if autocast else PURE, attention="eager")
    traced = trace(sizes, replace(run, adapters=Adapters(rank=4, targets=TARGETS)))
    real = kept_with_peft(sizes, autocast=autocast)
    assert traced.blocks[-1] == pytest.approx(real, rel=0.01)
