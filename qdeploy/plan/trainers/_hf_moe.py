"""What mixtures of experts of transformers' models keep.

transformers 5 runs all experts of a block as two grouped products over the tokens sorted by
expert (integrations/moe.py, `grouped_mm`, its default), so that no padding to a capacity is
counted: k rows a token, whatever the routing. Autocast does not reach grouped products: experts
run in the type of their weights.
"""

from __future__ import annotations

from qdeploy.plan.saved import BlockRun, Saved
from qdeploy.plan.trainers._hf_linear import linear_inputs, linear_output_bytes
from qdeploy.plan.trainers._hf_mlp import mlp

_FP32_ROUTER = {"deepseek_v2", "deepseek_v3"}
"""Families whose router multiplies in FP32 where autocast is off."""
_RENORMALISED = {"mixtral", "deepseek_v3"}
"""Families that divide the chosen experts' weights by their sum."""
_EXPERTS = frozenset({"experts"})


def moe_readers(run: BlockRun) -> list[str]:
    """Linears that read the norm before the experts, in the type that it writes."""
    shape = run.shape
    names = [linear.name for linear in shape.shared_expert_linears[:-1]]
    if shape.shared_expert_gate:
        names.append("shared_expert_gate")
    if shape.family not in _FP32_ROUTER:
        names.append("gate")
    return names


def moe(run: BlockRun, read: int) -> list[Saved]:
    """A mixture of experts behind a norm that writes numbers of `read` bytes."""
    shape = run.shape
    found = [*_router(run, read), *_experts(run)]
    if shape.shared_expert_linears:
        found += mlp(run, shape.shared_expert_linears, read)
    if shape.shared_expert_gate:
        out = 8 * linear_output_bytes(run, read)
        found += [
            Saved("shared_expert_gate.sigmoid", 1, 8 * run.compute_bytes),
            Saved("shared_expert.out", shape.hidden_size, out),
        ]
    return found


def _router(run: BlockRun, read: int) -> list[Saved]:
    """Probabilities of all experts and indices of the chosen ones.

    The groups of DeepSeek-V3's router, some tens of bytes a token, are left out.
    """
    shape = run.shape
    found: list[Saved] = []
    if shape.family in _FP32_ROUTER:
        # Where the norm writes FP32 and autocast is off, this is the shared experts' input.
        kept = read == 4 and not run.autocast and bool(shape.shared_expert_linears)
        found += linear_inputs(run, ["gate"], shape.hidden_size, produced=4, kept=kept)
    found.append(Saved("gate.probabilities", shape.experts, 32))
    found.append(Saved("gate.chosen", shape.experts_per_token, 64))
    if shape.family in _RENORMALISED:
        found.append(Saved("gate.weights", shape.experts_per_token + 1, 32))
    return found


def _experts(run: BlockRun) -> list[Saved]:
    shape, chosen = run.shape, run.shape.experts_per_token
    # Weights of the experts have the type of the residual stream: FP32 under autocast over FP32
    # weights and beside a 4-bit base, of which they are no part.
    bits = 8 * run.residual_bytes
    hidden, width = chosen * shape.hidden_size, chosen * shape.expert_intermediate_size
    inner = ("gate", "up", "activation") if shape.gated_mlp else ("activation.input",)
    return [
        Saved("experts.order", 3 * chosen, 64),
        Saved("experts.input", hidden, bits, _EXPERTS),
        *(Saved(f"experts.{name}", width, bits, split="tensor") for name in inner),
        Saved("experts.down.input", width, bits, _EXPERTS, "tensor"),
        Saved("experts.out", hidden, bits),
        Saved("experts.weights", chosen, 32),
    ]
