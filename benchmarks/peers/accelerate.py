"""`accelerate estimate-memory MODEL --dtypes ...`, its column "Training using Adam".

Its inputs are a model and a dtype. It builds the model on the meta device, takes its FP32 size,
and prints the largest of four parts (weights, gradients, optimizer, step) as the need of training
with a batch of 1; int8 and int4 are N/A. Its KB, MB and GB are powers of 1024. The command needs
the hub; here it is given a folder with config.json and, in the hub's place, the class that the
hub's entry would have named.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NAME = "accelerate estimate-memory"
REQUIREMENTS = ("torch==2.13.0", "accelerate==1.15.0", "transformers==5.24.0")
ESTIMATES = (
    "training with Adam and a batch of 1, the largest of weights, gradients, optimizer and step; "
    "nothing for activations, CUDA or parallelism"
)
UNITS = "prints GB, and divides by 1024 three times"

_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "float16", "bf16-pure": "float16"}
# Families whose hub entry names a class in its own code, and one of transformers of the same sizes.
_STAND_INS = {"qwen": "qwen2", "baichuan": "llama", "chatglm": "qwen2"}
_SIZES = {
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
    "tied_embeddings": "tie_word_embeddings",
}


def estimate(question: dict[str, Any]) -> int:
    """Bytes that the command prints; ValueError for what it has no input for."""
    request = question["request"]
    if request["peft"] is not None:
        raise ValueError("adapters are no input: all weights are trained")
    if question["world"] > 1:
        raise ValueError("the number of GPUs is no input")
    if request["micro_batch"] != 1:
        raise ValueError("its number is for a batch of 1")
    if request["optimizer"] != "adamw":
        raise ValueError("the optimizer is no input: Adam")
    if request["strategy"] != "none" or request["offload"] != "none":
        raise ValueError("ZeRO, FSDP and offload are no inputs")
    return _command(question["shape"], _DTYPES[request["precision"]])


def _command(shape: dict[str, Any], dtype: str) -> int:
    from accelerate.commands import estimate as command

    family = _STAND_INS.get(shape["family"], shape["family"])
    remote = {"auto_map": {"AutoModelForCausalLM": ""}} if family != shape["family"] else {}
    command.verify_on_hub = lambda *_: SimpleNamespace(config=remote)
    config = {"model_type": family, **{key: shape[ours] for ours, key in _SIZES.items()}}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        arguments = argparse.Namespace(
            model_name=folder, library_name="transformers", dtypes=[dtype], trust_remote_code=False
        )
        _check_size(command, arguments, shape, with_head=bool(remote))
        ((_, _, _, parts),) = command.gather_data(arguments)
    return int(max(parts.values()))


def _check_size(command: Any, arguments: Any, shape: dict[str, Any], *, with_head: bool) -> None:
    """The model that the command builds is the row's: it would build the base class, no head."""
    model = command.create_empty_model(arguments.model_name, arguments.library_name)
    built = sum(parameter.numel() for parameter in model.parameters())
    wanted = shape["parameters"] - (0 if with_head else shape["head_parameters"])
    if built != wanted:
        raise ValueError(f"{shape['family']}: {built} parameters built, the row has {wanted}")
