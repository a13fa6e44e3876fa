"""Rows of published measurements as plan requests.

`planner_rows/measured_peaks.csv` has measured peaks of training runs, `planner_rows/fit_bounds.csv`
runs that fitted a card or did not, each with its public source. `request_of` turns a row into a
PlanRequest, or says what the source leaves open. Another file with the same columns can be read
the same way.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdeploy.core.units import GB, GIB
from qdeploy.models.shape import ModelShape
from qdeploy.models.shipped_shapes import shipped_shape
from qdeploy.plan.request import PlanRequest

FOLDER = Path(__file__).parent / "planner_rows"
Row = dict[str, str]


@dataclass(frozen=True)
class Refusal:
    """A row that cannot be planned, and why."""

    reason: str


@dataclass(frozen=True)
class Peak:
    """A measured peak in bytes, on a basis of PlanRequest; None: the source does not say."""

    peak_bytes: int
    basis: str | None


_BASES = {"allocated": "allocated", "active": "allocated", "reserved": "reserved",
          "nvidia-smi": "device"}  # fmt: skip
_UNITS = {"GiB": GIB, "MiB/1024": GIB}

# What the sources call models, where it is not the name of a shipped shape.
_MODELS = {
    "qwen-1-8b": "qwen-1.8b", "zephyr-7b": "mistral-7b", "bert-large-uncased": "bert-large-uncased",
    "mistral-7b-v0.2": "mistral-7b", "llama-2-7b": "llama-2-7b", "bloomz-7b1": "bloom-7b1",
}  # fmt: skip
_GPUS = {"?": "A100-80GB", "A100": "A100-80GB", "a100_80gb": "A100-80GB", "a100_40gb": "A100-40GB",
         "h100_80gb": "H100-80GB", "H100-96GB": "H100-NVL-94GB", "RTXA6000-48GB": "A6000",
         "RTX3090": "RTX-3090", "RTX3090-24GB": "RTX-3090", "RTX4090-24GB": "RTX-4090",
         "RTX4080-16GB": "RTX-4080", "A100-SXM4-40GB": "A100-40GB",
         "A100-SXM4-80GB": "A100-80GB"}  # fmt: skip
_TRAINERS = {
    "litgpt": "litgpt", "torchtune": "torchtune", "torchtitan": "torchtitan",
    "fsdp_qlora": "fsdp-qlora", "llm-foundry": "foundry", "examples/megatron": "megatron",
}  # fmt: skip


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV file, by their `id`s in order."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def peaks_of(row: Row) -> list[Peak]:
    """The measured peaks of a row: its own, and what its notes say was allocated."""
    unit = _UNITS.get(row["unit"], GB)
    basis = _BASES.get(row["what_is_measured"])
    found = [Peak(round(float(row["measured_peak_gb"]) * unit), basis)]
    allocated = re.search(r"peak[ _](?:allocated|active)[ =]([\d.]+)", row["notes"])
    if allocated:
        found.append(Peak(round(float(allocated[1]) * unit), "allocated"))
    return found


def request_of(row: Row) -> PlanRequest | Refusal:
    """The run of a row of either file."""
    open_ones = [name for name in ("micro_batch", "seq_len") if not row[name].strip().isdigit()]
    if open_ones:
        return Refusal(f"the source leaves {' and '.join(open_ones)} open: {row[open_ones[0]]}")
    trainer = next((name for key, name in _TRAINERS.items() if key in row["source"]), "hf")
    model = _model(row["model"])
    fields: dict[str, Any] = {
        "model": model,
        "gpu": _GPUS.get(row["gpu"], row["gpu"]),
        "gpus": int(row["n_gpus"]),
        "micro_batch": int(row["micro_batch"]),
        "seq_len": int(row["seq_len"]),
        "trainer": trainer,
        "precision": _precision(row, trainer),
    }
    fields |= _nodes(fields["gpus"])
    if "sharding" in row:
        fields |= _bounds_strategy(row)
    else:
        fields |= _peaks_strategy(row, trainer)
    fields |= _peft(row["peft"], row["precision"], model)
    if trainer == "foundry":
        # Its models have a row of learned positions for each token of the sequence.
        fields["model"] = _with_positions(model, int(row["seq_len"]))
    refused = fields.pop("refused", None)
    return Refusal(refused) if refused else PlanRequest(**fields)


def _with_positions(model: str, positions: int) -> ModelShape:
    known = shipped_shape(model)
    assert known is not None
    return known.shape.model_copy(update={"max_positions": positions})


def _nodes(gpus: int) -> dict[str, int]:
    if gpus <= 8:
        return {"gpus": gpus}
    return {"gpus": 8, "nodes": gpus // 8}


def _model(name: str) -> str:
    plain = re.sub(r"\s*\(.*\)|\s+nf4.*$", "", name).strip().casefold().replace("_", ".")
    plain = re.sub(r"-(chat|instruct|int4)\b", "", plain)
    plain = plain.replace("qwen-1.8b", "qwen-1.8b")
    return _MODELS.get(plain, plain)


def _precision(row: Row, trainer: str) -> str:
    text = row["precision"]
    if trainer == "foundry":
        # PURE gathers and reduces in BF16; shards, gradients and Adam stay FP32
        # (mosaicml/composer, mosaic_fsdp_utils.get_mixed_precision).
        return "bf16"
    if "pure" in text or "bf16-true" in text or text == "nf4-dq":
        return "bf16-pure"
    if trainer in ("litgpt", "fsdp-qlora"):
        return "bf16-pure"
    if "(bf16 states)" in row["optimizer"]:
        return "bf16-pure"
    if row.get("strategy", "").startswith("zero"):
        return "bf16"
    if text.startswith(("fp32 params", "amp", "bf16")):
        # Trainers that load 16-bit weights and train them as they are: ms-swift's full training.
        pure = "swift" in row["source"] and row["peft"] == "none" and trainer == "hf"
        return "bf16-pure" if pure else "bf16"
    return "fp16" if text.startswith("fp16") else "fp32"


def _bounds_strategy(row: Row) -> dict[str, Any]:
    sharding = row["sharding"]
    fields: dict[str, Any] = {
        "checkpointing": row["act_ckpt"] == "True",
        "packing": True,
        # llm-foundry's benchmark script asks for the triton kernel: no unpadding, as sdpa.
        "attention": "sdpa",
    }
    if sharding.startswith("device_map"):
        # Layers spread over the GPUs, one micro-batch at a time: a pipeline without overlap.
        return {**fields, "strategy": "none", "pipeline_parallel": int(row["n_gpus"]),
                "accumulation_steps": 1}  # fmt: skip
    if sharding.startswith("zero"):
        fields |= {"strategy": sharding[:5], "offload": "none", "attention": "sdpa",
                   "packing": False}  # fmt: skip
        if "5e8" in sharding:
            fields["ds_config"] = {
                "zero_optimization": {
                    "stage": int(sharding[4]), "reduce_bucket_size": 500_000_000,
                    "allgather_bucket_size": 500_000_000, "overlap_comm": True,
                }
            }  # fmt: skip
        return fields
    names = {"FULL_SHARD": "fsdp1", "SHARD_GRAD_OP": "fsdp-grad-op"}
    return {**fields, "strategy": names.get(sharding, "none")}


def _peaks_strategy(row: Row, trainer: str) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "checkpointing": row["grad_ckpt"].startswith(("yes", "full", "selective")),
        "attention": _attention(row["attention"]),
        "optimizer": _optimizer(row["optimizer"]),
        "optimizer_in_backward": "in bwd" in row["optimizer"] or "fused in bwd" in row["optimizer"],
        "activation_offload": row["offload"] == "activations",
        # Trainers whose batches are packed or as long as the longest sample.
        "packing": trainer in ("litgpt", "torchtune", "torchtitan", "fsdp-qlora", "megatron"),
        "compile": "compile" in row["notes"] and "eager" not in row["notes"],
        "accumulation_steps": _accumulation(row),
    }
    context = re.search(r"(\d+) MiB CUDA context", row["notes"])
    if context:
        fields["context_bytes"] = int(context[1]) * 2**20
    if row["grad_ckpt"] in ("?", "yes?") or "?" in row["grad_ckpt"]:
        return {"refused": f"the source leaves checkpointing open: {row['grad_ckpt']}"}
    if row["grad_ckpt"].startswith("selective"):
        fields["recompute"] = "ops"
    if trainer == "torchtune":
        fields |= _torchtune(row)
    if "liger" in row["notes"]:
        fields["loss"] = "liger"
    fields |= _parallel(row["strategy"], int(row["n_gpus"]))
    if row["offload"].startswith("cpu") and "refused" not in fields:
        fields["offload"] = "all"
    elif fields.get("strategy") is not None:
        fields["offload"] = "none"
    pipeline = fields.get("pipeline_parallel", 1)
    if pipeline > 1 and trainer == "torchtitan":
        # Its local batch is cut into as many micro-batches as there are stages.
        fields |= {"micro_batch": max(1, int(row["micro_batch"]) // pipeline),
                   "accumulation_steps": pipeline}  # fmt: skip
    return fields


def _torchtune(row: Row) -> dict[str, Any]:
    """Its table of optimization flags adds one to those of the row before: packing, compile,
    chunked loss, checkpointing, the optimizer in the backward pass, offloaded activations."""
    notes = row["notes"]
    if "unpacked" in notes:
        return {"refused": "samples were not packed, their lengths are not known"}
    chunked = "chunked CE" in notes
    if "cumulative row" in notes:
        compiled = "+packed" not in notes
        chunked = compiled and "+compile" not in notes
    else:
        compiled = "compile" in notes
    return {"loss": "chunked" if chunked else "upcast", "compile": compiled}


def _parallel(text: str, gpus: int) -> dict[str, Any]:
    if "?" in text:
        return {"refused": f"the source leaves the strategy open: {text}"}
    if "ulysses" in text:
        return {"strategy": "ddp", "context_parallel": int(text.split("sp")[-1])}
    degrees = {kind: int(size) for kind, size in re.findall(r"(fsdp|tp|pp|cp|ep)(\d+)", text)}
    fields: dict[str, Any] = {
        "tensor_parallel": degrees.get("tp", 1),
        "pipeline_parallel": degrees.get("pp", 1),
        "context_parallel": degrees.get("cp", 1),
        "expert_parallel": degrees.get("ep", 1),
    }
    if text.startswith("megatron"):
        return {**fields, "strategy": "zero1" if gpus > 1 else "none"}
    if "no_shard" in text or text == "ddp":
        return {**fields, "strategy": "ddp"}
    if text.startswith("fsdp"):
        second = text.startswith("fsdp2") or bool(degrees)
        return {**fields, "strategy": "fsdp" if second else "fsdp1"}
    return {**fields, "strategy": text if text.startswith("zero") else "none"}


def _attention(text: str) -> str:
    if "eager" in text:
        return "eager"
    return "flash" if text.startswith("flash") or "(flash)" in text else "sdpa"


def _optimizer(text: str) -> str:
    folded = text.casefold().replace("_", "")
    if "adafactor" in folded:
        return "adafactor"
    eight = "8bit" in folded
    if folded.startswith("paged"):
        return "paged_adamw8bit" if eight else "paged_adamw"
    return "adamw8bit" if eight else "adamw"


def _accumulation(row: Row) -> int:
    steps = re.search(r"grad accum (\d+)", row["notes"])
    if steps:
        return int(steps[1])
    # Before PyTorch 2.0 zero_grad kept the gradients, as accumulation does.
    return 2 if "perf_train_gpu_one" in row["source"] else 1


_TARGETS = {
    "q,v": ("q_proj", "v_proj"),
    "q,k,v,o": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "c_attn": ("c_attn",),
    "qkv": "qkv",
}


def _peft(text: str, precision: str, model: str) -> dict[str, Any]:
    if text == "none":
        return {}
    if "Adapter" in text:
        return {"peft": "adapter" if text.endswith("v1") else "adapter-v2", **_base(precision)}
    rank = re.search(r"r=(\d+)", text)
    if rank is None and "?" in text:
        return {"refused": "the source leaves the rank and the targets of LoRA open"}
    fields: dict[str, Any] = {
        "peft": "qlora" if text.casefold().startswith(("qlora", "q-lora")) else "lora",
        "lora_rank": int(rank[1]) if rank else 8,
        "train_embeddings": "lm_head trained" in text,
        "lora_targets": _targets(text, model),
    }
    return fields | _base(precision)


def _targets(text: str, model: str) -> tuple[str, ...]:
    known = shipped_shape(model)
    if known is None:
        return ()
    names = [linear.name for linear in known.shape.attention_linears]
    inside = re.search(r"\(([^)]*)\)", text)
    wanted = inside[1] if inside else ""
    if known.shape.fused_qkv and wanted in ("q,v", "qkv", "c_attn"):
        return (names[0],)
    if wanted == "qkv":
        return tuple(names[:3])
    if wanted == "q,v":
        return (names[0], names[2])
    if wanted == "q,k,v,o":
        return tuple(names)
    return ()


def _base(precision: str) -> dict[str, str]:
    for mark, base in (
        ("nf4-dq", "nf4-dq"), ("nf4", "nf4"), ("int4 (bnb)", "nf4"), ("GPTQ-int4", "gptq-int4"),
        ("int4 (gptq)", "gptq-int4"), ("int8", "int8"),
    ):  # fmt: skip
        if mark in precision:
            return {"base": base}
    return {}
