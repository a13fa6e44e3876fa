"""Which tensor of the planned model has the size that an allocator tried to get.

PyTorch's allocators ask the device for whole 2 MiB above 10 MiB, for 20 MiB for what is between 1
and 10 MiB and for 2 MiB below (c10/cuda/CUDACachingAllocator.cpp, `get_allocation_size`), and
print two decimals. Sizes up to 20 MiB tell nothing, larger ones are compared to the last digit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qdeploy.core.units import GIB, MIB
from qdeploy.plan.oom.planned import Planned
from qdeploy.plan.oom.schema import Cause, OomReport, Operation, Phase
from qdeploy.plan.schema import Plan

_GRANULE_BYTES = 2 * MIB
_LEAST_BYTES = 20 * MIB
_DEEPSPEED_BUCKET = 500_000_000
_SUB_GROUP = 1_000_000_000

_PASSES: tuple[Phase, ...] = ("forward", "backward", "evaluate")
_STATES: tuple[Phase, ...] = ("load", "step")


_WEIGHT_OPERATIONS: tuple[Operation, ...] = ("gather", "upcast", "dequantize", "reduce")


@dataclass(frozen=True)
class Tensor:
    """A tensor that training allocates in one piece, and when."""

    cause: Cause
    what: str
    size_bytes: int
    phases: tuple[Phase, ...]
    operations: tuple[Operation, ...] = ()

    def asks_for(self, tried_bytes: int) -> bool:
        """Whether a message about this tensor says `tried_bytes`."""
        rounded = -(-self.size_bytes // _GRANULE_BYTES) * _GRANULE_BYTES
        printed = GIB // 200 + 1 if tried_bytes >= GIB else MIB // 200 + 1
        return tried_bytes == self.size_bytes or abs(rounded - tried_bytes) <= printed


def matching_tensors(planned: Planned, report: OomReport) -> list[Tensor]:
    """The tensors of the planned run with the size that was tried.

    Those that the phase or the operation of the traceback speaks against are left out. Empty for
    sizes that tell nothing.
    """
    tried = report.tried_bytes
    if tried is None or tried <= _LEAST_BYTES:
        return []
    return [
        tensor
        for tensor in _tensors(planned)
        if tensor.asks_for(tried)
        and (report.operation is None or report.operation in tensor.operations)
        and (report.phase == "unknown" or report.phase in tensor.phases)
    ]


def _tensors(planned: Planned) -> Iterator[Tensor]:
    plan = planned.plan
    yield from _logits(planned)
    yield from _of_a_block(planned)
    yield from _states(plan)
    yield from _weights(plan)
    for elements, name in ((_DEEPSPEED_BUCKET, "5e8"), (_DEEPSPEED_BUCKET // 10, "5e7")):
        for width in _widths(plan):
            what = f"a bucket of {name} elements ({width} bytes each)"
            yield Tensor(
                "buffers", what, width * elements, ("load", "backward"), ("reduce", "gather")
            )


def _widths(plan: Plan) -> tuple[int, ...]:
    """Bytes of a compute number, and of an FP32 one."""
    return (4,) if plan.precision.dtype == "fp32" else (2, 4)


def _kind(width: int) -> str:
    return "FP32" if width == 4 else "16-bit"


def _logits(planned: Planned) -> Iterator[Tensor]:
    plan, request = planned.plan, planned.plan.request
    if plan.model.shape.task != "causal_lm":
        return
    batch, length = planned.candidate.micro_batch, request.seq_len // request.context_parallel
    vocabulary = plan.model.shape.vocab_size // request.tensor_parallel
    for width in _widths(plan):
        # Losses that shift labels by a token leave the last one out.
        for tokens in (batch * length, batch * (length - 1)):
            what = f"the {_kind(width)} logits of {tokens:,} tokens ({width} x {vocabulary:,} each)"
            yield Tensor("logits", what, width * vocabulary * tokens, _PASSES, ("logits",))


def _of_a_block(planned: Planned) -> Iterator[Tensor]:
    plan, shape, request = planned.plan, planned.plan.model.shape, planned.plan.request
    batch, length = planned.candidate.micro_batch, request.seq_len // request.context_parallel
    heads, tokens = shape.heads // request.tensor_parallel, batch * length
    inner = shape.intermediate_size // request.tensor_parallel
    for width in _widths(plan):
        scores = f"the {_kind(width)} attention matrix of a layer ({heads} heads x {length:,}"
        yield Tensor(
            "activations", f"{scores} x {request.seq_len:,} tokens)",
            width * batch * heads * length * request.seq_len, _PASSES,
            ("eager_attention", "attention"),
        )  # fmt: skip
        features_of: tuple[tuple[int, str, tuple[Operation, ...]], ...] = (
            (inner, "MLP features", ("mlp",)),
            (2 * inner, "gate and up features of the MLP", ("mlp",)),
            (heads * shape.head_dim, "queries", ("attention", "eager_attention")),
            (shape.hidden_size, "hidden states", ("norm", "attention", "mlp")),
        )
        for features, what, operations in features_of:
            yield Tensor(
                "activations", f"the {_kind(width)} {what} of {tokens:,} tokens in a layer",
                width * features * tokens, _PASSES, operations,
            )  # fmt: skip


def _states(plan: Plan) -> Iterator[Tensor]:
    request = plan.request
    split = request.tensor_parallel * request.pipeline_parallel
    trained = plan.model.trainable_parameters // split
    world = request.gpus * request.nodes // split
    share = -(-trained // world)
    of = f"the {trained:,} trained parameters"
    part = f"{of} / {world} GPUs" if world > 1 else of
    states: tuple[Operation, ...] = ("master_weights", "optimizer_states", "gradient_copy")
    counts = [(share, f"an FP32 copy or state of {part}")]
    if share > _SUB_GROUP:
        counts.append((_SUB_GROUP, "an FP32 sub-group of 1e9 parameters"))
    if world > 1:
        counts.append((trained, f"an FP32 copy or state of {of}"))
    for count, what in counts:
        yield Tensor("optimizer", what, 4 * count, _STATES, states)
    if plan.precision.dtype != "fp32":
        what = f"the 16-bit weights or gradients of {part}"
        yield Tensor("gradients", what, 2 * share, _STATES, ("reduce", "gather"))


def _weights(plan: Plan) -> Iterator[Tensor]:
    shape, parameters = plan.model.shape, plan.model.parameters
    everywhere: tuple[Phase, ...] = ("load", "step", *_PASSES)
    for width in _widths(plan):
        counts: tuple[tuple[int, str, Cause], ...] = (
            (parameters, "all weights", "weights"),
            (shape.vocab_size * shape.hidden_size, "the embedding or the head", "weights"),
            (shape.block_parameters, "the weights of one block", "buffers"),
            (shape.hidden_size * shape.intermediate_size, "one MLP weight or gradient", "weights"),
        )
        for count, what, cause in counts:
            named = f"{what} ({_kind(width)})"
            yield Tensor(cause, named, width * count, everywhere, _WEIGHT_OPERATIONS)
