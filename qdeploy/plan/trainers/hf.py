"""Hugging Face: the model classes of transformers 5, trained by its Trainer or TRL's.

`block` counts what autograd keeps of one block as `torch.autograd.graph.saved_tensors_hooks` sees
it over the classes themselves; `qdeploy.trace` does that and the tests hold one against the other.
Eager attention is counted for batches of two and more, which copy queries, keys and values.
Models whose code lies on the hub (Baichuan, ChatGLM, Qwen-1, InternLM2) are counted as if they
were written as LLaMA's class is. Names of norms are LLaMA's for every family.
"""

from __future__ import annotations

from dataclasses import replace

from qdeploy.plan.saved import BlockRun, Saved
from qdeploy.plan.trainers import Traits
from qdeploy.plan.trainers._hf_block import parts
from qdeploy.plan.trainers._hf_working import attention_working, mlp_working, norm_working

TRAITS = Traits(
    summary="transformers' model classes with its Trainer or TRL's",
    loss="hf",
    adapter_bytes=4,
    autocasts=True,
    upcasts_base=True,
)


def block(run: BlockRun) -> list[Saved]:
    """What one block keeps for its backward pass, for one token.

    Raises InputError where transformers has no such attention for the family.
    """
    attending, thinking = parts(_in_one_type(run))
    return [*attending, *thinking]


def working_bytes(run: BlockRun) -> int:
    """Bytes a token that the backward pass of one block needs at its peak beyond `block`.

    The peak lies in the MLP, in a norm behind it, or, where the scores are kept, in the softmax;
    what the MLP kept is gone then.
    """
    run = _in_one_type(run)
    return max(mlp_working(run), norm_working(run), attention_working(run, parts(run)[1]), 0)


def _in_one_type(run: BlockRun) -> BlockRun:
    """Without autocast a 4-bit base writes the FP32 that it reads: all is computed in FP32."""
    if run.quantized_base and not run.autocast:
        return replace(run, compute_bytes=run.residual_bytes)
    return run
