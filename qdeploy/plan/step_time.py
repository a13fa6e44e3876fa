"""A simple model of the time of one micro-batch, good for ranking layouts, not for schedules.

time = compute + communication / 2 + offload

- compute: 6 floating-point operations a parameter and token, 8 with checkpointing (one more
  forward pass); 4 and 6 with a frozen base. At half of the GPU's dense 16-bit peak.
- communication: bytes that each GPU sends, times (N-1)/N, over one direction of NVLink (of PCIe
  without it, of a 200 Gbit/s network between nodes) at four fifths; half of it is hidden behind
  compute. Per micro-batch: ddp and zero1 exchange gradients and weights once a step, 4 bytes a
  parameter / accumulation; zero2 reduces gradients in every micro-batch (2 bytes); zero3 and fsdp
  gather weights twice and reduce gradients (6 bytes).
- offload: gradients down and weights up once a step over PCIe, Adam at the host's memory bandwidth
  (28 bytes a parameter, a node together); with `all` the weights come up twice a micro-batch; with
  `nvme` states are read and written once a step.
"""

from __future__ import annotations

from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout

_COMPUTE_EFFICIENCY = 0.5
_LINK_EFFICIENCY = 0.8
_VISIBLE_COMMUNICATION = 0.5
_NETWORK_BYTES_PER_SECOND = 25e9
_HOST_BYTES_PER_SECOND = 100e9
_NVME_BYTES_PER_SECOND = 5e9
_CPU_ADAM_BYTES = 28
_NVME_BYTES = 32


def step_seconds(job: Job, layout: Layout) -> float:
    """Modelled seconds of one micro-batch, its share of the optimizer step included."""
    return (
        _compute_seconds(job, layout)
        + _VISIBLE_COMMUNICATION * _communication_seconds(job, layout)
        + _offload_seconds(job, layout)
    )


def _compute_seconds(job: Job, layout: Layout) -> float:
    operations = 6 if job.request.peft is None else 4
    operations += 2 if layout.checkpointing else 0
    bf16, fp16 = job.gpu.bf16_tflops, job.gpu.fp16_tflops
    tflops = bf16 if job.precision.dtype == "bf16" and bf16 else fp16
    if job.precision.dtype == "fp32":
        tflops = fp16 / 2
    return operations * job.parameters * job.tokens / (tflops * 1e12 * _COMPUTE_EFFICIENCY)


def _communication_seconds(job: Job, layout: Layout) -> float:
    if job.world == 1:
        return 0.0
    element, accumulation = job.compute_bytes, job.request.accumulation_steps
    exchanged = element * job.trainable
    if "weights" in layout.strategy.shards:
        volume = 2.0 * element * job.parameters + exchanged
    elif "gradients" in layout.strategy.shards:
        volume = exchanged + exchanged / accumulation
    else:
        volume = 2 * exchanged / accumulation
    return volume * (job.world - 1) / job.world / _link_bytes_per_second(job)


def _link_bytes_per_second(job: Job) -> float:
    if job.request.nodes > 1:
        return _NETWORK_BYTES_PER_SECOND
    return (job.gpu.nvlink_gb_s or job.gpu.pcie_gb_s) * 1e9 / 2 * _LINK_EFFICIENCY


def _offload_seconds(job: Job, layout: Layout) -> float:
    if layout.offload == "none":
        return 0.0
    pcie = job.gpu.pcie_gb_s * 1e9 / 2 * _LINK_EFFICIENCY
    share = layout.shard("states", job.trainable, job.world)
    on_node = job.trainable / job.request.nodes
    step = 2 * job.compute_bytes * share / pcie + _CPU_ADAM_BYTES * on_node / _HOST_BYTES_PER_SECOND
    if layout.offload == "nvme":
        step += _NVME_BYTES * on_node / _NVME_BYTES_PER_SECOND
    streamed = 0.0
    if layout.offload in ("all", "nvme"):
        streamed = 2 * job.compute_bytes * job.parameters / job.world / pcie
    return streamed + step / job.request.accumulation_steps
