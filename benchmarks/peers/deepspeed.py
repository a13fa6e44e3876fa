"""DeepSpeed's `estimate_zero2_model_states_mem_needs` and `estimate_zero3_...`.

Their inputs are the parameters, the largest layer (ZeRO-3), GPUs, nodes and offload. They count
16-bit weights, gradients and FP32 optimizer states of Adam, all parameters trained. The functions
return bytes; their printed tables say GB and divide by 2^30.
"""

from __future__ import annotations

import os
from typing import Any

NAME = "DeepSpeed estimate_zero2/3"
REQUIREMENTS = ("torch==2.13.0", "deepspeed==0.19.8")
ESTIMATES = (
    "model states of ZeRO-2 and ZeRO-3 with Adam; nothing for activations, logits, buffers or CUDA"
)
UNITS = "the functions return bytes; the tables print GB, and divide by 2^30"


def estimate(question: dict[str, Any]) -> int:
    """Bytes on one GPU; ValueError for what the functions have no input for."""
    request = question["request"]
    if request["strategy"] not in ("zero2", "zero3"):
        raise ValueError("only ZeRO-2 and ZeRO-3")
    if request["peft"] is not None:
        raise ValueError("adapters are no input: all weights are trained")
    if request["optimizer"] != "adamw":
        raise ValueError("the optimizer is no input: Adam")
    if request["precision"] not in ("bf16", "fp16"):
        raise ValueError("the precision is no input: 16-bit with FP32 masters")
    if request["offload"] == "nvme" or (request["strategy"], request["offload"]) == (
        "zero2",
        "all",
    ):
        raise ValueError(f"offload {request['offload']} is no input of {request['strategy']}")
    if question["model_parallel"] > 1:
        raise ValueError("tensor, pipeline and context parallelism are no inputs")
    return _functions(question)


def _functions(question: dict[str, Any]) -> int:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    request, shape = question["request"], question["shape"]
    gpus = {"num_gpus_per_node": request["gpus"], "num_nodes": request["nodes"]}
    offload = request["offload"] != "none"
    if request["strategy"] == "zero2":
        _, on_gpu = estimate_zero2_model_states_mem_needs(
            shape["parameters"], cpu_offload=offload, **gpus
        )
        return int(on_gpu)
    _, on_gpu, _ = estimate_zero3_model_states_mem_needs(
        shape["parameters"],
        shape["largest_layer_parameters"],
        cpu_offload=offload,
        cpu_offload_params=request["offload"] == "all",
        **gpus,
    )
    return int(on_gpu)
