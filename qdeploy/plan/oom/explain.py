"""From a message and, where given, a plan to the part that was too large and the way out."""

from __future__ import annotations

from dataclasses import dataclass

from qdeploy.core.units import GIB, MIB, format_bytes
from qdeploy.plan.oom.changes import change_for
from qdeploy.plan.oom.planned import Planned, plan_for, words
from qdeploy.plan.oom.schema import Cause, Explanation, OomReport, Operation, Phase
from qdeploy.plan.oom.tensors import matching_tensors
from qdeploy.plan.request import PlanRequest

# CUDA context and NCCL alone stay below these.
_OUTSIDE_SHARE = 0.1
_OUTSIDE_BYTES = 4 * GIB
_OTHERS_SHARE = 0.02
_SMALL_BYTES = 20 * MIB

_BY_OPERATION: dict[Operation, Cause] = {
    "logits": "logits",
    "eager_attention": "activations",
    "attention": "activations",
    "mlp": "activations",
    "norm": "activations",
    "gather": "buffers",
    "reduce": "buffers",
    "dequantize": "buffers",
    "optimizer_states": "optimizer",
    "master_weights": "master_weights",
    "gradient_copy": "gradients",
    "upcast": "weights",
}
_BY_PHASE: dict[Phase, Cause] = {
    "load": "weights",
    "forward": "activations",
    "backward": "activations",
    "step": "optimizer",
    "save": "weights",
    "evaluate": "logits",
}
_OPERATION_WORDS: dict[Operation, str] = {
    "logits": "the loss over the logits",
    "eager_attention": "eager attention, which stores a matrix of tokens x tokens a head",
    "attention": "attention",
    "mlp": "an MLP",
    "norm": "a norm",
    "gather": "gathering sharded weights",
    "reduce": "reducing gradients",
    "dequantize": "unpacking quantized weights",
    "optimizer_states": "creating the optimizer's states",
    "master_weights": "copying the weights to FP32",
    "gradient_copy": "copying gradients to FP32",
    "upcast": "turning frozen weights to FP32 for k-bit training",
}


@dataclass(frozen=True)
class _Finding:
    cause: Cause
    sentence: str
    tensor: str | None = None


def explain(report: OomReport, request: PlanRequest | None = None) -> Explanation:
    """Say which part was too large and the smallest change.

    With `request`, the run as it was started, the size that was tried and the parts are held
    against its plan. Raises InputError as `plan` does.
    """
    planned = None if request is None else plan_for(report, request)
    finding = _find(report, planned)
    sentences = [finding.sentence]
    checkpointing = planned is not None and planned.candidate.checkpointing
    change = change_for(finding.cause, report, checkpointing=checkpointing)
    if planned is not None and finding.cause != "shared_memory":
        said, better = _against_plan(report, planned, finding.cause)
        sentences += said
        change = better or change
    inputs = {"log": report.log_sha256}
    if planned is not None:
        inputs |= planned.plan.inputs
    return Explanation(
        inputs=inputs,
        report=report,
        cause=finding.cause,
        tensor=finding.tensor,
        layout=planned.layout if planned else None,
        per_gpu=planned.candidate.per_gpu if planned else None,
        largest_part=planned.largest if planned else None,
        sentences=sentences,
        change=change,
    )


def _find(report: OomReport, planned: Planned | None) -> _Finding:
    if report.kind == "host":
        return _host(report)
    if report.kind == "pinned":
        return _Finding(
            "pinned",
            "Host memory could not be locked (pinned) for transfers to the GPU: the GPU itself "
            "was not full, but the host, or the limit of locked memory, was.",
        )
    if report.kind == "nccl":
        return _Finding(
            "framework",
            "NCCL found no memory for its buffers, which lie outside PyTorch's allocator: the GPU "
            "was filled up before, so about 1 GiB must be left free.",
        )
    if report.kind == "cublas":
        return _Finding(
            "framework",
            "cuBLAS or cuDNN found no memory for its workspace: the GPU was full before (an index "
            "beyond the vocabulary can show the same error).",
        )
    return _not_this_run(report) or _by_size(report, planned) or _by_traceback(report, planned)


def _host(report: OomReport) -> _Finding:
    if report.operation == "shared_memory":
        return _Finding(
            "shared_memory",
            "The data loader's workers ran out of shared memory (/dev/shm), not of GPU memory.",
        )
    if report.certain:
        tried = f" (it asked for {format_bytes(report.tried_bytes)})" if report.tried_bytes else ""
        first = f"The host's memory, not the GPU's, was used up{tried}"
    else:
        first = (
            "A process was killed by signal 9, most often by the kernel because the host's memory "
            "was used up (dmesg shows it)"
        )
    usage = report.usage
    if usage is not None and usage.host_used_bytes is not None:
        total = usage.host_total_bytes
        of = f" of about {format_bytes(total)}" if total else ""
        first += (
            f"; the last reading before it was {format_bytes(usage.host_used_bytes)}{of} used "
            f"on the host, at {usage.label!r}"
        )
    return _Finding("host", f"{first}.")


def _not_this_run(report: OomReport) -> _Finding | None:
    """Memory that was there but split up, or held by something else."""
    tried, unallocated = report.tried_bytes, report.unallocated_bytes
    if tried is None:
        return None
    if unallocated is not None and unallocated >= tried:
        return _Finding(
            "fragmentation",
            f"PyTorch held {format_bytes(unallocated)} that no tensor used, more than the "
            f"{format_bytes(tried)} that was asked for, but not in one piece: the memory is "
            "fragmented.",
        )
    limit = report.allowed_bytes
    if limit is not None and (report.free_bytes or 0) >= tried:
        return _Finding(
            "limit",
            f"The GPU had {format_bytes(report.free_bytes or 0)} free, but this process is limited "
            f"to {format_bytes(limit)} (set_per_process_memory_fraction).",
        )
    short = tried - (report.free_bytes or 0)
    capacity = report.capacity_bytes or 0
    others = report.other_process_bytes
    if others is not None and others >= max(short, capacity * _OTHERS_SHARE):
        return _Finding(
            "other_processes",
            f"Other processes held {format_bytes(others)} of the GPU's {format_bytes(capacity)}; "
            f"without them the {format_bytes(tried)} would have fitted.",
        )
    outside = (report.other_bytes or 0) - (others or 0)
    if outside < max(short, capacity * _OUTSIDE_SHARE, _OUTSIDE_BYTES):
        return None
    said = f"{format_bytes(outside)} of the GPU were in use outside PyTorch's allocator"
    if others is None:
        more = "more than a CUDA context and NCCL take: another process is on it"
        return _Finding("other_processes", f"{said}, {more}.")
    more = "but by this process: CUDA context, NCCL, or a library such as an inference engine"
    return _Finding("framework", f"{said}, {more}.")


def _by_size(report: OomReport, planned: Planned | None) -> _Finding | None:
    if planned is None or report.tried_bytes is None:
        return None
    found = matching_tensors(planned, report)
    if not found:
        return None
    cause = found[0].cause
    other = next((tensor.what for tensor in found if tensor.cause != cause), None)
    tensor = found[0].what if other is None else f"{found[0].what} or {other}"
    return _Finding(
        cause,
        f"The {format_bytes(report.tried_bytes)} that {_phase_words(report)} asked for is the size "
        f"of {tensor}: {words(cause)}.",
        tensor,
    )


def _by_traceback(report: OomReport, planned: Planned | None) -> _Finding:
    tried = format_bytes(report.tried_bytes) if report.tried_bytes is not None else "memory"
    asked = f"{_phase_words(report)} asked for {tried}"
    if report.operation in _BY_OPERATION:
        cause = _BY_OPERATION[report.operation]
        doing = _OPERATION_WORDS[report.operation]
        return _Finding(cause, f"In {doing}, {asked}: {words(cause)}.")
    capital = f"{asked[0].upper()}{asked[1:]}"
    if report.tried_bytes is not None and report.tried_bytes <= _SMALL_BYTES:
        full = f"{capital}, a small request on a GPU that was full already"
        if planned is None:
            return _Finding("unknown", f"{full}: this is not the part that was too large.")
        part = planned.largest
        return _Finding(part, f"{full}, by the plan above all of {words(part)}.")
    by_phase = _BY_PHASE.get(report.phase)
    if by_phase is None:
        said = f"The GPU was full when {asked}, and the log has no traceback that says for what."
        return _Finding("unknown", said)
    return _Finding(by_phase, f"{capital}: most likely {words(by_phase)}.")


def _phase_words(report: OomReport) -> str:
    if report.phase == "unknown":
        return "the run"
    named = {
        "load": "loading or setting up the model", "forward": "the forward pass",
        "backward": "the backward pass", "step": "the optimizer step",
        "save": "saving a checkpoint", "evaluate": "the evaluation",
    }  # fmt: skip
    return named[report.phase]


def _against_plan(
    report: OomReport, planned: Planned, cause: Cause
) -> tuple[list[str], str | None]:
    """What the plan says of it, and the plan's change where it has one."""
    if report.kind == "host":
        return _host_against_plan(report, planned)
    if report.kind == "pinned":
        pinned = format_bytes(planned.candidate.host_pinned_bytes)
        return [f"For {planned.layout} the plan pins {pinned} of each node's host."], None
    said = [planned.sentence]
    change = planned.smallest_change()
    if cause in ("fragmentation", "limit", "other_processes"):
        if change is not None:
            said.append(f"Even so the layout is too large; what then fits: {change}.")
        return said, None
    if report.capacity_bytes is not None and not planned.is_of(report.capacity_bytes):
        said.append(f"But the log's GPU has {format_bytes(report.capacity_bytes)}.")
    elif change is None and planned.candidate.fits:
        said.append(
            "By the plan this fits, so the run differs from the request: longer sequences, "
            "padding, another attention or loss, or other processes."
        )
    return said, change


def _host_against_plan(report: OomReport, planned: Planned) -> tuple[list[str], str | None]:
    one = planned.candidate
    total = report.usage.host_total_bytes if report.usage else None
    total = planned.request.host_memory_bytes or total
    said = (
        f"For {planned.layout} the plan needs {format_bytes(one.host_init_bytes)} of host memory "
        f"a node at the start and {format_bytes(one.host_bytes)} while training"
    )
    need = max(one.host_init_bytes, one.host_bytes)
    if total is None:
        return [f"{said}."], None
    relation = "more than" if need > total else "within"
    change = planned.smallest_change(total) if need > total else None
    return [f"{said}, {relation} the host's {format_bytes(total)}."], change
