"""Configurations of other trainers: they parse, they say what the plan says, in known keys."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import pytest
import yaml

from qdeploy.core.errors import InputError
from qdeploy.core.plugins import plugin_names
from qdeploy.plan import Plan
from qdeploy.plan.deepspeed import ds_config
from qdeploy.plan.emit import PACKAGE, find_emitter
from qdeploy.plan.hf_names import model_id, optimizer_arguments

NAMES = [name.replace("_", "-") for name in plugin_names(PACKAGE)]

# hiyouga/LLaMA-Factory, src/llamafactory/hparams (model_args, data_args, finetuning_args) and
# examples/; the rest are transformers.TrainingArguments.
LLAMAFACTORY = {
    "model_name_or_path", "stage", "do_train", "finetuning_type", "flash_attn",
    "enable_liger_kernel", "disable_gradient_checkpointing", "cutoff_len", "packing",
    "neat_packing", "pure_bf16", "lora_rank", "lora_alpha", "lora_dropout", "lora_target",
    "additional_target", "quantization_method", "quantization_bit", "quantization_type",
    "double_quantization",
}  # fmt: skip
# modelscope/ms-swift, docs/source_en/Instruction/Command-line-parameters.md; `tuner_type` since 4.
MS_SWIFT = {
    "model", "dataset", "tuner_type", "torch_dtype", "attn_impl", "max_length", "packing",
    "gradient_checkpointing", "use_liger_kernel", "deepspeed", "fsdp", "lora_rank", "lora_alpha",
    "lora_dropout", "target_modules", "modules_to_save", "quant_method", "quant_bits",
    "bnb_4bit_quant_type", "bnb_4bit_use_double_quant",
}  # fmt: skip
# axolotl-ai-cloud/axolotl, src/axolotl/utils/schemas: config, model, training, peft, fsdp, and
# integrations/liger, integrations/cut_cross_entropy.
AXOLOTL = {
    "base_model", "adapter", "load_in_4bit", "load_in_8bit", "lora_r", "lora_alpha",
    "lora_dropout", "lora_target_linear", "lora_target_modules", "lora_modules_to_save",
    "bnb_config_kwargs", "sequence_len", "sample_packing", "micro_batch_size",
    "gradient_accumulation_steps", "optimizer", "optim_args", "adam_epsilon", "learning_rate",
    "max_grad_norm", "bf16", "fp16", "bfloat16", "attn_implementation", "plugins",
    "liger_fused_linear_cross_entropy", "cut_cross_entropy", "chunked_cross_entropy",
    "torch_compile", "output_dir", "activation_offloading", "fsdp_version", "fsdp_config",
    "gradient_checkpointing", "deepspeed",
}  # fmt: skip
AXOLOTL_FSDP = {
    "auto_wrap_policy", "reshard_after_forward", "offload_params", "activation_checkpointing",
    "cpu_ram_efficient_loading", "state_dict_type",
}  # fmt: skip


def trainer_arguments() -> set[str]:
    from transformers import TrainingArguments

    return set(TrainingArguments.__dataclass_fields__)


@pytest.fixture
def make(planning: Any) -> Any:
    """A plan of one layout that fits."""

    def make(strategy: str, **fields: Any) -> Plan:
        gpus = 1 if strategy == "none" else 8
        asked = {
            "model": "Qwen/Qwen2.5-0.5B", "gpus": gpus, "strategy": strategy, "offload": "none",
            "checkpointing": True, "micro_batch": 2, "accumulation_steps": 4, **fields,
        }  # fmt: skip
        plan: Plan = planning.plan(**asked)
        assert plan.chosen is not None
        return plan

    return make


def emitted(name: str, plan: Plan) -> dict[str, str]:
    files = find_emitter(name).emit(plan)
    for text in files.values():
        assert text.endswith("\n")
    return files


def arguments(script: str) -> dict[str, list[str]]:
    """The options of the `swift sft` command in a script."""
    command = script[script.index("swift sft") :].replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for word in shlex.split(command)[2:]:
        if word.startswith("--"):
            name = word.removeprefix("--")
            assert name not in found
            found[name] = []
        else:
            found[name].append(word)
    return found


@pytest.mark.parametrize("name", ["deepspeed", "accelerate", "llamafactory", "ms-swift", "axolotl"])
@pytest.mark.parametrize(
    ("strategy", "offload"), [("zero1", "none"), ("zero2", "optimizer"), ("zero3", "nvme")]
)
def test_the_deepspeed_json_is_the_plans(
    make: Any, planning: Any, name: str, strategy: str, offload: str
) -> None:
    plan = make(strategy, offload=offload)
    job = planning.job(model=plan.model.shape, gpus=8, micro_batch=2, accumulation_steps=4)
    expected = ds_config(job, planning.layout(strategy, offload))
    assert json.loads(emitted(name, plan)["ds_config.json"]) == expected


def test_training_arguments_take_fsdp(make: Any, tmp_path: Path) -> None:
    from transformers import TrainingArguments

    for checkpointing in (True, False):
        text = emitted("fsdp", make("fsdp", checkpointing=checkpointing))["training_arguments.json"]
        said = json.loads(text)
        assert set(said) <= trainer_arguments()
        assert (said["per_device_train_batch_size"], said["gradient_accumulation_steps"]) == (2, 4)
        # use_cpu: no GPU is here to accept bf16; liger only with its package.
        built = TrainingArguments(**said, output_dir=str(tmp_path), use_cpu=True)
        plugin = built.fsdp_plugin_args
        assert plugin is not None
        assert plugin["fsdp_version"] == 2
        assert plugin["reshard_after_forward"] is True
        assert plugin["activation_checkpointing"] is checkpointing
        assert plugin["cpu_ram_efficient_loading"] is True


def test_fsdp_that_keeps_the_weights_gathered(make: Any) -> None:
    said = json.loads(emitted("fsdp", make("fsdp-grad-op"))["training_arguments.json"])
    assert said["fsdp_config"]["reshard_after_forward"] is False


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [("none", "NO"), ("ddp", "MULTI_GPU"), ("zero3", "DEEPSPEED"), ("fsdp", "FSDP")],
)
def test_accelerate_reads_its_file(make: Any, tmp_path: Path, strategy: str, kind: str) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    files = emitted("accelerate", make(strategy))
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    config = load_config_from_file(str(tmp_path / "accelerate_config.yaml"))
    assert config.distributed_type.value == kind
    assert config.num_processes == (1 if strategy == "none" else 8)
    assert config.mixed_precision == (None if kind == "DEEPSPEED" else "bf16")
    assert (config.deepspeed_config != {}) == (kind == "DEEPSPEED") == ("ds_config.json" in files)
    assert (config.fsdp_config != {}) == (kind == "FSDP")
    # The names of the launcher's own options (accelerate/commands/launch.py).
    from accelerate.commands.launch import launch_command_parser

    options = {action.dest for action in launch_command_parser()._actions}
    for block in (config.deepspeed_config, config.fsdp_config):
        assert set(block) <= options


def test_accelerate_of_several_nodes(make: Any) -> None:
    text = emitted("accelerate", make("zero2", nodes=2))["accelerate_config.yaml"]
    said = yaml.safe_load(text)
    assert (said["num_machines"], said["num_processes"]) == (2, 16)
    assert "--machine_rank" in text


def test_llamafactory(make: Any) -> None:
    plan = make("zero2", peft="qlora", lora_rank=8, base="nf4", loss="liger", packing=True,
                lora_targets=("q_proj", "v_proj"))  # fmt: skip
    said = yaml.safe_load(emitted("llamafactory", plan)["train.yaml"])
    assert set(said) <= LLAMAFACTORY | trainer_arguments()
    assert said["model_name_or_path"] == "Qwen/Qwen2.5-0.5B"
    assert said["finetuning_type"] == "lora"
    assert (said["quantization_bit"], said["double_quantization"]) == (4, False)
    assert said["lora_target"] == "q_proj,v_proj"
    assert (said["lora_rank"], said["lora_alpha"]) == (8, 16)
    assert said["enable_liger_kernel"] is said["neat_packing"] is True
    assert said["disable_gradient_checkpointing"] is False
    assert said["deepspeed"] == "ds_config.json"
    assert said["learning_rate"] == 1e-4


@pytest.mark.parametrize("gpu", ["A100-80GB", "V100-32GB"])
def test_transformers_finds_no_mismatch(make: Any, gpu: str) -> None:
    """Arguments and JSON are compared when both are given (integrations/deepspeed.py)."""
    from types import SimpleNamespace

    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    files = emitted("llamafactory", make("zero3", gpu=gpu))
    said = {
        "adam_beta1": 0.9, "adam_beta2": 0.999, "weight_decay": 0.0, "save_on_each_node": False,
        "world_size": 8, "bf16_full_eval": False, "fp16_full_eval": False,
        "get_warmup_steps": lambda steps: 0, **yaml.safe_load(files["train.yaml"]),
    }  # fmt: skip
    checked = HfTrainerDeepSpeedConfig(json.loads(files["ds_config.json"]))
    checked.trainer_config_process(SimpleNamespace(**said))
    checked.trainer_config_finalize(SimpleNamespace(**said), None, 10)
    assert checked.config == json.loads(files["ds_config.json"])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"bf16": True, "fp16": False, "adam_epsilon": 1e-8}),
        ({"gpu": "V100-32GB"}, {"bf16": False, "fp16": True, "adam_epsilon": 1e-6}),
        ({"precision": "fp32"}, {"bf16": False, "fp16": False}),
        ({"precision": "bf16-pure"}, {"bf16": False, "pure_bf16": True}),
        ({"optimizer": "adamw8bit"}, {"optim": "adamw_bnb_8bit"}),
        ({"optimizer": "sgd_momentum"}, {"optim": "sgd", "optim_args": "momentum=0.9"}),
        ({"attention": "eager"}, {"flash_attn": "disabled"}),
        ({"peft": "lora", "train_embeddings": True}, {"additional_target": "embed_tokens,lm_head"}),
    ],
)
def test_llamafactory_settings(make: Any, fields: Any, expected: dict[str, Any]) -> None:
    said = yaml.safe_load(emitted("llamafactory", make("ddp", **fields))["train.yaml"])
    assert {key: said.get(key) for key in expected} == expected
    assert "deepspeed" not in said


def test_llamafactory_with_fsdp_brings_accelerates_file(make: Any) -> None:
    files = emitted("llamafactory", make("fsdp"))
    assert set(files) == {"train.yaml", "accelerate_config.yaml"}
    assert "accelerate launch" in files["train.yaml"]


def test_ms_swift(make: Any) -> None:
    plan = make("zero2", peft="qlora", nodes=2, seq_len=1024)
    script = emitted("ms-swift", plan)["train.sh"]
    said = arguments(script)
    assert set(said) <= MS_SWIFT | trainer_arguments()
    assert said["model"] == ["Qwen/Qwen2.5-0.5B"]
    assert said["tuner_type"] == ["lora"]
    assert said["target_modules"] == ["all-linear"]
    assert (said["quant_bits"], said["bnb_4bit_use_double_quant"]) == (["4"], ["true"])
    assert said["torch_dtype"] == ["bfloat16"]
    assert said["max_length"] == ["1024"]
    assert "NPROC_PER_NODE=8 NNODES=2" in script


@pytest.mark.parametrize(
    ("strategy", "fields", "dtype"),
    [
        ("ddp", {}, "float32"),
        ("zero3", {}, "bfloat16"),
        ("ddp", {"precision": "bf16-pure"}, "bfloat16"),
        ("ddp", {"peft": "lora"}, "bfloat16"),
        ("zero2", {"gpu": "V100-32GB"}, "float16"),
    ],
)
def test_ms_swift_loads_what_the_plan_counts(
    make: Any, strategy: str, fields: Any, dtype: str
) -> None:
    said = arguments(emitted("ms-swift", make(strategy, **fields))["train.sh"])
    assert said["torch_dtype"] == [dtype]


def test_ms_swift_script_is_shell(make: Any, tmp_path: Path) -> None:
    import subprocess

    script = tmp_path / "train.sh"
    script.write_text(emitted("ms-swift", make("zero1"))["train.sh"], encoding="utf-8")
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
    refused = subprocess.run(
        ["sh", str(script)], check=False, capture_output=True, text=True, env={}
    )
    assert refused.returncode != 0
    assert "DATASET" in refused.stderr


def test_ms_swift_fsdp(make: Any) -> None:
    said = arguments(emitted("ms-swift", make("fsdp"))["train.sh"])
    assert (said["fsdp"], said["gradient_checkpointing"]) == (["fsdp2"], ["false"])
    with pytest.raises(InputError, match="without checkpointing"):
        emitted("ms-swift", make("fsdp", checkpointing=False))
    with pytest.raises(InputError, match="fsdp-grad-op"):
        emitted("ms-swift", make("fsdp-grad-op"))


def test_axolotl(make: Any) -> None:
    plan = make("zero3", loss="liger", packing=True, attention="flash")
    said = yaml.safe_load(emitted("axolotl", plan)["axolotl.yaml"])
    assert set(said) <= AXOLOTL
    assert said["micro_batch_size"] == 2
    assert said["attn_implementation"] == "flash_attention_2"
    assert said["liger_fused_linear_cross_entropy"] is True
    assert said["sample_packing"] is said["gradient_checkpointing"] is said["bf16"] is True
    assert said["learning_rate"] == 1e-5


def test_axolotl_qlora_and_fsdp(make: Any) -> None:
    said = yaml.safe_load(emitted("axolotl", make("ddp", peft="qlora"))["axolotl.yaml"])
    assert set(said) <= AXOLOTL
    assert (said["adapter"], said["load_in_4bit"]) == ("qlora", True)
    assert said["lora_target_linear"] is True
    fsdp = yaml.safe_load(emitted("axolotl", make("fsdp"))["axolotl.yaml"])
    assert set(fsdp) <= AXOLOTL
    assert set(fsdp["fsdp_config"]) == AXOLOTL_FSDP
    assert fsdp["fsdp_config"]["activation_checkpointing"] is True
    assert "gradient_checkpointing" not in fsdp


def test_axolotl_keeps_no_fp32_weights(make: Any) -> None:
    with pytest.raises(InputError, match="FP32 under autocast"):
        emitted("axolotl", make("ddp"))
    said = yaml.safe_load(emitted("axolotl", make("ddp", precision="bf16-pure"))["axolotl.yaml"])
    assert (said["bfloat16"], said["bf16"]) == (True, False)


@pytest.mark.parametrize(
    ("name", "strategy", "fields", "said"),
    [
        ("deepspeed", "ddp", {}, "without DeepSpeed"),
        ("fsdp", "zero2", {}, "not fsdp"),
        ("accelerate", "ddp", {"activation_offload": True}, "activation offload"),
        ("llamafactory", "ddp", {"loss": "chunked"}, "loss chunked"),
        ("ms-swift", "ddp", {"optimizer": "muon"}, "no optimizer muon"),
        ("accelerate", "ddp", {"tensor_parallel": 2}, "data-parallel"),
        ("axolotl", "zero1", {"recompute": "attention"}, "cannot recompute attention"),
        ("llamafactory", "ddp", {"optimizer_in_backward": True}, "inside the backward pass"),
    ],
)
def test_what_cannot_be_said_is_refused(
    make: Any, name: str, strategy: str, fields: Any, said: str
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        emitted(name, make(strategy, **fields))
    assert caught.value.hint


@pytest.mark.parametrize("name", NAMES)
def test_nothing_fits(planning: Any, name: str) -> None:
    plan = planning.plan(model="70B", gpu="T4", precision="fp16", offload="none")
    with pytest.raises(InputError, match="nothing fits"):
        emitted(name, plan)


def test_a_plan_from_its_file(make: Any) -> None:
    plan = make("zero2")
    again = Plan.model_validate_json(plan.to_json())
    for name in ("deepspeed", "accelerate", "llamafactory", "ms-swift", "axolotl"):
        assert emitted(name, again) == emitted(name, plan)


def test_names() -> None:
    assert model_id("llama-2-7b") == "meta-llama/Llama-2-7b-hf"
    assert model_id("models/模型") == "models/模型"
    from transformers.training_args import OptimizerNames

    known = {name.value for name in OptimizerNames}
    for name in plugin_names("qdeploy.plan.optimizers", ".toml"):
        if name != "muon":
            assert optimizer_arguments(name)["optim"] in known
