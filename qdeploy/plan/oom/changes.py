"""The smallest change by cause, for when no plan knows a better one."""

from __future__ import annotations

from qdeploy.plan.oom.schema import Cause, OomReport

_HALVE = "halve the micro-batch and double the accumulation steps"

_CHANGES: dict[Cause, str] = {
    "weights": "shard the weights (ZeRO-3 or FSDP), or quantize the frozen ones (QLoRA)",
    "master_weights": "shard the FP32 weights over the GPUs (ZeRO-1 and up), or offload the "
    "optimizer to the host",
    "gradients": "shard the gradients (ZeRO-2 and up), or train adapters (LoRA)",
    "optimizer": "take an 8-bit optimizer (adamw8bit), shard its states (ZeRO-1 and up), or "
    "offload it to the host",
    "logits": "use a fused or chunked loss (use_liger_kernel=True in TrainingArguments), or "
    + _HALVE,
    "buffers": "set smaller ZeRO buckets (reduce_bucket_size 5e7; in ZeRO-3 also "
    "stage3_prefetch_bucket_size and stage3_max_live_parameters)",
    "framework": _HALVE,
    "unknown": _HALVE,
}
_CHANGES_ELSEWHERE: dict[Cause, str] = {
    "limit": "raise the limit of torch.cuda.set_per_process_memory_fraction",
    "other_processes": "free the GPU: nvidia-smi lists what runs on it; several ranks on one GPU "
    "mean that each must be bound to its own (LOCAL_RANK)",
    "host": "start fewer processes a node, offload less, or take a host with more memory",
    "shared_memory": "give /dev/shm more room (docker run --shm-size=16g or --ipc=host), or set "
    "num_workers=0 in the data loader",
    "pinned": 'set "pin_memory": false for the offload in the DeepSpeed configuration, or raise '
    "the limit of locked memory (ulimit -l unlimited)",
}
_VARIABLES = {"HIP": "PYTORCH_HIP_ALLOC_CONF", "NPU": "PYTORCH_NPU_ALLOC_CONF"}


def change_for(cause: Cause, report: OomReport, *, checkpointing: bool = False) -> str:
    """The smallest change for `cause`, fitted to what the log shows.

    `checkpointing`: activation checkpointing is known to be on.
    """
    if cause == "fragmentation":
        variable = _VARIABLES.get(report.backend or "", "PYTORCH_CUDA_ALLOC_CONF")
        return f"set {variable}=expandable_segments:True (PyTorch 2.1 and newer)"
    if cause == "host" and report.phase == "load":
        return (
            "load one copy instead of one a process: with ZeRO-3 create TrainingArguments (or "
            "HfDeepSpeedConfig) before from_pretrained, with FSDP set "
            "fsdp_cpu_ram_efficient_loading"
        )
    if cause in _CHANGES_ELSEWHERE:
        return _CHANGES_ELSEWHERE[cause]
    if report.phase == "evaluate":
        return (
            "set a smaller per_device_eval_batch_size, and eval_accumulation_steps or "
            "prediction_loss_only so that logits don't gather on the GPU"
        )
    if report.phase == "save":
        return (
            "save sharded (FSDP SHARDED_STATE_DICT; in DeepSpeed "
            "stage3_gather_16bit_weights_on_model_save false), or with offload to the host"
        )
    if cause == "activations":
        return _for_activations(report, checkpointing=checkpointing or report.recomputes)
    return _CHANGES[cause]


def _for_activations(report: OomReport, *, checkpointing: bool) -> str:
    if report.operation == "eager_attention":
        return 'load the model with attn_implementation="sdpa" (or "flash_attention_2")'
    if checkpointing:
        return _HALVE
    return f"switch activation checkpointing on (gradient_checkpointing=True), or {_HALVE}"
