"""What the MLPs of transformers' models keep behind their first linears."""

from __future__ import annotations

from collections.abc import Sequence

from qdeploy.models.linear import Linear
from qdeploy.plan.saved import BlockRun, Saved
from qdeploy.plan.trainers._hf_linear import linear_inputs, linear_output_bytes


def mlp(run: BlockRun, linears: Sequence[Linear], read: int) -> list[Saved]:
    """An MLP of `linears` behind a norm that writes numbers of `read` bytes.

    With a gate: gate, its activation, up and their product, whether gate and up are one linear or
    two. Without: what the activation keeps, and its output.
    """
    down = linears[-1]
    width, written = down.in_features, linear_output_bytes(run, read)
    found: list[Saved] = []
    if run.shape.gated_mlp:
        names = ("gate", "activation", "up")
        found += [Saved(f"mlp.{name}", width, 8 * written, split="tensor") for name in names]
        product, kept = written, False
    else:
        activation, product, kept = _activation(run, width, written)
        found += activation
    return found + linear_inputs(
        run, [down.name], width, produced=product, split="tensor", kept=kept
    )


def _activation(run: BlockRun, width: int, read: int) -> tuple[list[Saved], int, bool]:
    """What the activation without a gate keeps; bytes of its output; if it keeps that itself."""
    bits = 8 * read
    if run.shape.activation == "relu":
        return [Saved("mlp.activation", width, bits, split="tensor")], read, True
    if run.shape.activation != "gelu_new":
        return [Saved("mlp.activation.input", width, bits, split="tensor")], read, False
    # Single operations, 0.5 x (1 + tanh(c (x + d x^3))); autocast takes the power in FP32.
    wide = 4 if run.autocast else read
    found = [
        Saved("mlp.activation.cubed", width, 8 * wide, split="tensor"),
        Saved("mlp.activation.half", width, bits, split="tensor"),
        Saved("mlp.activation.tanh", width, 8 * wide, split="tensor"),
        Saved("mlp.activation.one_plus_tanh", width, 8 * wide, split="tensor"),
    ]
    return found, wide, False
