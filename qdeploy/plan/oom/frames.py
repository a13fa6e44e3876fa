"""What a run was doing when it was out of memory, from the lines of its traceback.

The frame nearest to the message that says anything decides; frames of a forward pass decide last,
since a forward pass is also run again inside a backward pass, an evaluation or a generation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from qdeploy.plan.oom.schema import Operation, Phase

_HEADER = "Traceback (most recent call last)"

_PHASES: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    (
        "step",
        re.compile(
            r"optimizer\.step\(|_take_model_step|initialize_optimizer_states|engine\.step\("
            r"|in (?:_init_group|_?optimizer_step|unscale_and_clip_grads|_prepare_sub_group)\b"
            r"|in _?(?:single|multi)_tensor_|in _?fused_adamw?\b"
        ),
    ),
    (
        "evaluate",
        re.compile(
            r"in (?:evaluation_loop|prediction_step|evaluate|nested_concat|compute_metrics)\b"
        ),
    ),
    (
        "save",
        re.compile(
            r"in (?:save_pretrained|_?save_checkpoint|save_model|save_16bit_model|_save)\b"
            r"|consolidated_16bit_state_dict|_full_(?:pre|post)_state_dict|get_model_state_dict"
        ),
    ),
    ("backward", re.compile(r"\.backward\(|run_backward|in backward\b")),
    (
        "load",
        re.compile(
            r"from_pretrained\b|_load_pretrained_model|load_checkpoint|load_state_dict"
            r"|_configure_zero_optimizer|deepspeed\.initialize|deepspeed_init\b"
            r"|prepare_model_for_kbit_training|_move_model_to_device|\bmodel\.(?:to|cuda)\("
            r"|in (?:_apply|convert)\b|in _prepare_(?:deepspeed|fsdp|model)\b|fully_shard\("
            r"|DistributedDataParallel\(|FullyShardedDataParallel\(|accelerator\.prepare\("
        ),
    ),
)
_FORWARD = re.compile(
    r"in forward\b|_call_impl|forward_call|compute_loss|self\.model\(|model\(\*\*"
)
_RECOMPUTE = re.compile(r"utils/checkpoint\.py|activation_checkpointing/checkpointing\.py")

_OPERATIONS: tuple[tuple[Operation, re.Pattern[str]], ...] = (
    ("gather", re.compile(r"all_?gather|fetch_sub_module|unshard\b|GatheredParameters")),
    (
        "reduce",
        re.compile(r"reduce_scatter|reduce_independent_p_g|_ipg_|all_?reduce|reduce_and_partition"),
    ),
    ("dequantize", re.compile(r"dequantize_4bit|dequantize_blockwise|matmul_4bit")),
    ("upcast", re.compile(r"prepare_model_for_kbit_training|param\.data\.to\(torch\.float32\)")),
    (
        "logits",
        re.compile(
            r"cross_entropy|log_softmax|nll_loss|logits\.float\(|logits\.to\(|logits = "
            r"|ForCausalLMLoss|lm_head\("
        ),
    ),
    (
        "eager_attention",
        re.compile(r"attn_weights|attention_scores|attention_probs|eager_attention_forward"),
    ),
    (
        "attention",
        re.compile(r"scaled_dot_product|flash_attn|repeat_kv|self\.(?:self_)?att(?:entio)?n\("),
    ),
    (
        "mlp",
        re.compile(
            r"gate_proj|up_proj|down_proj|act_fn|dense_h_to_4h|self\.mlp\(|\bc_fc\b|\bfc1\b"
        ),
    ),
    ("norm", re.compile(r"RMSNorm|rms_norm|layer_?norm|hidden_states\.to\(torch\.float32\)")),
    ("gradient_copy", re.compile(r"averaged_gradients|single_grad_partition|get_fp32_grad")),
    (
        "optimizer_states",
        re.compile(r"initialize_optimizer_states|in _init_group\b|exp_avg|zeros_like\(p\b"),
    ),
    (
        "master_weights",
        re.compile(r"fp32_partition|fp32_groups_flat|create_fp32|clone\(\)\.float\(\)"),
    ),
)


def begins_traceback(line: str) -> bool:
    """Whether `line` is the heading that Python writes over a traceback."""
    return _HEADER in line


def find_phase(lines: Sequence[str]) -> Phase:
    """The phase of the run that `lines`, outermost frame first, were in."""
    for line in reversed(lines):
        for phase, words in _PHASES:
            if words.search(line):
                return phase
    return "forward" if any(_FORWARD.search(line) for line in lines) else "unknown"


def find_operation(lines: Sequence[str]) -> Operation | None:
    """What the innermost recognizable frame computes."""
    for line in reversed(lines):
        for operation, words in _OPERATIONS:
            if words.search(line):
                return operation
    return None


def recomputes(lines: Sequence[str]) -> bool:
    """Whether activation checkpointing is among the frames."""
    return any(_RECOMPUTE.search(line) for line in lines)
