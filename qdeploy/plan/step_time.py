"""A simple model of the time of one optimizer step, good for ranking layouts, not for schedules.

time = accumulation x (compute + communication / 2 + streamed weights) x pipeline + step

- compute: 6 floating-point operations an active parameter and token, 8 with checkpointing (one
  more forward pass); 4 and 6 with a frozen base; attention 6 Q S a token and layer, causal,
  8 with checkpointing. At half of the GPU's dense 16-bit peak where a pass has many tokens; a
  pass of 512 tokens reaches half of that, since the matrices no longer fill the GPU.
- communication: bytes that each GPU sends, times (N-1)/N, over one direction of NVLink (of PCIe
  without it, of a 200 Gbit/s network between nodes) at four fifths; half of it is hidden behind
  compute. ddp and zero1 exchange gradients and weights once a step, 4 bytes a parameter; zero2
  reduces gradients in every micro-batch (2 bytes); zero3 and fsdp gather weights twice and reduce
  gradients (6 bytes). Tensor parallelism exchanges 4 times the residual stream a block and pass.
- pipeline: a 1F1B schedule of p stages and m micro-batches takes (m + p - 1) / m of the time.
- offload: gradients down and weights up once a step over PCIe, Adam at the host's memory bandwidth
  (28 bytes a parameter, a node together); with `all` the weights come up twice a micro-batch; with
  `nvme` states are read and written once a step; offloaded activations go down and up over PCIe.
"""

from __future__ import annotations

from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.terms.activations import kept_bytes

_COMPUTE_EFFICIENCY = 0.5
_HALF_FILLED_TOKENS = 512
_LINK_EFFICIENCY = 0.8
_VISIBLE_COMMUNICATION = 0.5
_NETWORK_BYTES_PER_SECOND = 25e9
_HOST_BYTES_PER_SECOND = 100e9
_NVME_BYTES_PER_SECOND = 5e9
_CPU_ADAM_BYTES = 28
_NVME_BYTES = 32


def step_seconds(job: Job, layout: Layout) -> float:
    """Modelled seconds of one optimizer step."""
    steps, stages = job.accumulation, job.request.pipeline_parallel
    micro_batch = (
        _compute_seconds(job, layout)
        + _VISIBLE_COMMUNICATION * _repeated_seconds(job, layout)
        + _streamed_seconds(job, layout)
    )
    once = _VISIBLE_COMMUNICATION * _exchange_seconds(job, layout) + _optimizer_seconds(job, layout)
    return (steps + stages - 1) * micro_batch + once


def _compute_seconds(job: Job, layout: Layout) -> float:
    shape, request = job.shape, job.request
    operations = 6 if job.peft is None else 4
    attention = 6
    if layout.checkpointing:
        operations += 2
        attention += 2
    active = shape.active_parameters + job.parameters - shape.parameters
    keys = min(request.seq_len, shape.sliding_window or request.seq_len)
    if shape.full_attention_every > 1:
        keys = request.seq_len
    reads = attention * shape.heads * shape.head_dim * keys * shape.layers
    work = (operations * active + reads) * job.tokens
    filled = job.tokens / (job.tokens + _HALF_FILLED_TOKENS)
    share = request.tensor_parallel * request.pipeline_parallel
    return work / share / (_operations_per_second(job) * _COMPUTE_EFFICIENCY * filled)


def _operations_per_second(job: Job) -> float:
    gpu, dtype = job.gpu, job.precision.dtype
    tflops = {
        "fp32": gpu.fp32_tflops or gpu.fp16_tflops / 2,
        "bf16": gpu.bf16_tflops or gpu.fp16_tflops,
        "fp16": gpu.fp16_tflops,
    }
    return tflops[dtype] * 1e12


def _repeated_seconds(job: Job, layout: Layout) -> float:
    """What is exchanged in every micro-batch."""
    element, ranks = job.compute_bytes, job.request.data_parallel
    gradients = element * job.held_trained.total
    volume = 0.0
    if layout.shards_weights:
        volume = 2.0 * element * job.held.total + gradients
    elif "gradients" in layout.strategy.shards:
        volume = gradients
    seconds = volume * (ranks - 1) / ranks / _link_bytes_per_second(job)
    tensor = job.request.tensor_parallel
    if tensor > 1:
        residual = element * job.shape.hidden_size * job.tokens * sum(job.rank.blocks)
        seconds += 4 * 2 * residual * (tensor - 1) / tensor / _node_bytes_per_second(job)
    return seconds


def _exchange_seconds(job: Job, layout: Layout) -> float:
    """What is exchanged once a step."""
    element, ranks = job.compute_bytes, job.request.data_parallel
    shards = layout.strategy.shards
    if layout.shards_weights:
        return 0.0
    times = 1 if "gradients" in shards else 2
    volume = times * element * job.held_trained.total
    return volume * (ranks - 1) / ranks / _link_bytes_per_second(job)


def _link_bytes_per_second(job: Job) -> float:
    if job.request.nodes > 1:
        return _NETWORK_BYTES_PER_SECOND
    return _node_bytes_per_second(job)


def _node_bytes_per_second(job: Job) -> float:
    return (job.gpu.nvlink_gb_s or job.gpu.pcie_gb_s) * 1e9 / 2 * _LINK_EFFICIENCY


def _pcie_bytes_per_second(job: Job) -> float:
    return job.gpu.pcie_gb_s * 1e9 / 2 * _LINK_EFFICIENCY


def _streamed_seconds(job: Job, layout: Layout) -> float:
    """What crosses PCIe in every micro-batch."""
    volume = 0.0
    if layout.offload in ("all", "nvme"):
        volume = 2 * job.compute_bytes * job.held.total / job.request.data_parallel
    if job.request.activation_offload:
        volume += 2 * kept_bytes(job.without_activation_offload, layout)
    return volume / _pcie_bytes_per_second(job)


def _optimizer_seconds(job: Job, layout: Layout) -> float:
    """The optimizer's step on the host."""
    if layout.offload == "none":
        return 0.0
    share = layout.shard("states", job.held_trained, job)
    on_node = job.trainable / job.request.nodes
    seconds = 2 * job.compute_bytes * share / _pcie_bytes_per_second(job)
    seconds += _CPU_ADAM_BYTES * on_node / _HOST_BYTES_PER_SECOND
    if layout.offload == "nvme":
        seconds += _NVME_BYTES * on_node / _NVME_BYTES_PER_SECOND
    return seconds
