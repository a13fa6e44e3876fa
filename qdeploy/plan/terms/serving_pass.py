"""The largest forward pass of serving, and what the engine itself takes.

- A pass of t tokens holds the residual stream and its normed copy, 2 H numbers a token, and then
  either one block's inner tensors or the sampler's. In a block the larger of: queries, keys, values
  and the heads' output; the MLP's two halves and their product (of a plain MLP input and output of
  the activation); k of them and k outputs for k experts a token, beside the shared ones. All
  divided by tensor parallelism.
- The sampler's chain for one request: 16-bit logits, their FP32 copy, sorted values and their
  64-bit places, softmax, cumulative sum, noise, 30 V bytes (vllm/v1/sample/sampler.py).
- t: max_num_batched_tokens, by default 8192 where the GPU has 70 GiB and is no A100, else 2048
  (vllm/engine/arg_utils.py, API server).
- The engine: CUDA context; CUDA graphs 0.5 GiB (0.1 to 1.4 in public logs of vLLM: PR 11349, issue
  14452, sglang issue 8538); NCCL with several GPUs.

Check: an 8B LLaMA 3, 8192 tokens and 256 requests, took 1.26 GiB (vllm PR 10511); this says 1.04.
"""

from __future__ import annotations

from qdeploy.core.units import GIB, MIB
from qdeploy.models.shape import ModelShape
from qdeploy.plan.gpu import Gpu
from qdeploy.plan.terms.framework import CONTEXT_BYTES, NCCL_BYTES

_GRAPHS_BYTES = 512 * MIB
_SAMPLER_BYTES = 2 + 4 + 4 + 8 + 4 + 4 + 4
_LARGE_GPU_BYTES = 70 * GIB


def batched_tokens(gpu: Gpu) -> int:
    """Tokens of the longest pass on `gpu` by the engine's defaults."""
    large = gpu.memory_bytes >= _LARGE_GPU_BYTES and "A100" not in gpu.name
    return 8192 if large else 2048


def pass_bytes(shape: ModelShape, tokens: int, requests: int, *, tensor: int = 1) -> int:
    """Tensors of a pass of `tokens` tokens after which `requests` tokens are sampled."""
    residual = 2 * 2 * tokens * shape.hidden_size
    block = -(-2 * tokens * inner_numbers(shape) // tensor)
    return residual + max(block, _SAMPLER_BYTES * requests * shape.vocab_size)


def inner_numbers(shape: ModelShape) -> int:
    """Numbers a token that the largest part of a block holds at the same time."""
    attention = shape.heads * (shape.head_dim + shape.value_dim)
    attention += shape.kv_heads * (shape.head_dim + shape.value_dim)
    halves = 3 if shape.gated_mlp else 2
    dense = halves * shape.intermediate_size if shape.moe_layers < shape.layers else 0
    routed = shape.experts_per_token * (halves * shape.expert_intermediate_size + shape.hidden_size)
    experts = routed + halves * shape.shared_expert_intermediate_size
    return max(attention, dense, experts)


def engine_bytes(*, tensor: int = 1) -> int:
    """What the engine takes beside tensors on one of `tensor` GPUs."""
    return CONTEXT_BYTES + _GRAPHS_BYTES + (NCCL_BYTES if tensor > 1 else 0)
