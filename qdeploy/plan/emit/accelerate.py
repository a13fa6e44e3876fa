"""accelerate: `accelerate_config.yaml` for `accelerate launch --config_file`, and DeepSpeed's JSON.

Keys are the fields of ClusterConfig (accelerate/commands/config/config_args.py) and, of FSDP, the
questions of `accelerate config` (commands/config/cluster.py). With a DeepSpeed file accelerate
refuses precision, accumulation and clipping in its own file (utils/dataclasses.py), so they stand
in the JSON alone.
"""

from __future__ import annotations

from typing import Any

from qdeploy.plan.emit import DS_FILE, Choice, choice_of, mapping_text
from qdeploy.plan.emit._trainer import no_activation_offload
from qdeploy.plan.schema import Plan

FILE = "accelerate_config.yaml"


def emit(plan: Plan) -> dict[str, str]:
    """The configuration of the launch, and DeepSpeed's where it is used."""
    choice = choice_of(plan)
    no_activation_offload(choice, "accelerate")
    files = {FILE: mapping_text(_config(choice), *_comments(choice))}
    return {**files, DS_FILE: choice.ds_json()} if choice.deepspeed else files


def _config(choice: Choice) -> dict[str, Any]:
    request = choice.request
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed_type(choice),
        "debug": False,
        "use_cpu": False,
        "num_machines": request.nodes,
        "num_processes": request.world,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
    }
    if not choice.deepspeed:
        dtype = choice.job.precision.dtype
        config["mixed_precision"] = "no" if choice.job.pure or dtype == "fp32" else dtype
    if choice.deepspeed:
        config["deepspeed_config"] = {
            "deepspeed_config_file": DS_FILE,
            "zero3_init_flag": choice.layout.shards_weights,
            **({"deepspeed_multinode_launcher": "standard"} if request.nodes > 1 else {}),
        }
    if choice.fsdp:
        config["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": choice.layout.shards_weights,
            "fsdp_offload_params": choice.layout.offload != "none",
            "fsdp_state_dict_type": "FULL_STATE_DICT",
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_activation_checkpointing": choice.layout.checkpointing,
        }
    if request.compile:
        config["dynamo_config"] = {"dynamo_backend": "INDUCTOR"}
    return config


def _distributed_type(choice: Choice) -> str:
    if choice.deepspeed:
        return "DEEPSPEED"
    if choice.fsdp:
        return "FSDP"
    return "MULTI_GPU" if choice.job.world > 1 else "NO"


def _comments(choice: Choice) -> list[str]:
    request = choice.request
    checkpointing = "on" if choice.layout.checkpointing else "off"
    batch = f"micro-batch {choice.job.micro_batch}, accumulation {choice.job.accumulation}"
    own = f"{batch}, checkpointing {checkpointing}, optimizer {request.optimizer}"
    said = [f"{choice.model}: {own}: your script sets these."]
    if request.nodes > 1:
        said.append(
            "On each node: accelerate launch --config_file THIS --machine_rank N "
            "--main_process_ip HOST --main_process_port 29500 ..."
        )
    return said
