"""The stock loss of transformers on whole logits, by a loop that holds the model's outputs."""

from __future__ import annotations

from qdeploy.plan.losses import LossRun

SUMMARY = "transformers' own loss on whole logits that are held, in FP32, through backward"


def loss_bytes(run: LossRun) -> int:
    """FP32 logits 4, log-softmax 4, its gradient 4, and that of the logits 4: 16 V a token.

    The log-softmax is taken of an FP32 copy (transformers, loss/loss_utils.py). What stays of the
    logits is what the caller holds: FP32 ones with an FP32 head, such as k-bit preparation makes,
    and with Accelerate's mixed precision, which converts outputs (ConvertOutputsToFp32); so do
    measured peaks grow (DaoyuanLi2816/can-i-finetune-this). 16-bit logits held make it 14 V. The
    Trainer of transformers 5 lets the outputs go before the backward pass: 12 V, loss `upcast`.
    """
    return 16 * run.tokens * run.vocabulary
