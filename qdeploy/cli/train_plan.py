"""`qdeploy train-plan`: will it train on these GPUs, and with which strategy?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_RUN, _PEFT, _PARALLEL = "The run", "Adapters", "Model parallelism"
_SIZES, _MACHINE, _MORE = "A model by its sizes", "The machines", "More than a plan"
_PLAN = "[default: try all]"


def train_plan(
    model: Annotated[
        str | None, typer.Argument(help="A folder, a known model or hub id, or a size: 7B.")
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(help="GPUs of a node: 2xA100-80GB; or 2xA100-80GB,4xL40S."),
    ] = None,
    micro_batch: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_RUN,
            help="Sequences of one pass on one GPU. [default: 1, or chosen for --global-batch]",
        ),
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option(rich_help_panel=_RUN, help="Sequences of one optimizer step on all GPUs."),
    ] = None,
    accumulation_steps: Annotated[
        int,
        typer.Option(rich_help_panel=_RUN, help="Micro-batches of a step, without --global-batch."),
    ] = 8,
    seq_len: Annotated[
        int, typer.Option(rich_help_panel=_RUN, help="Tokens of a sequence.")
    ] = 2048,
    packing: Annotated[
        bool, typer.Option("--packing", rich_help_panel=_RUN, help="No padding: sequences packed.")
    ] = False,
    precision: Annotated[
        str, typer.Option(rich_help_panel=_RUN, help="bf16, fp16, fp32 or bf16-pure.")
    ] = "bf16",
    optimizer: Annotated[
        str, typer.Option(rich_help_panel=_RUN, help="adamw, adamw8bit, adafactor, muon, ...")
    ] = "adamw",
    gradient_type: Annotated[
        str | None,
        typer.Option(rich_help_panel=_RUN, help="DeepSpeed accumulates in fp32 or 16bit."),
    ] = None,
    optimizer_in_backward: Annotated[
        bool,
        typer.Option(
            "--optimizer-in-backward", rich_help_panel=_RUN, help="Update each weight at once."
        ),
    ] = False,
    strategy: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_RUN, help=f"none, ddp, zero1, zero2, zero3, fsdp, ... {_PLAN}"
        ),
    ] = None,
    offload: Annotated[
        str | None,
        typer.Option(rich_help_panel=_RUN, help=f"none, optimizer, all or nvme. {_PLAN}"),
    ] = None,
    checkpointing: Annotated[
        bool | None,
        typer.Option(rich_help_panel=_RUN, help=f"Recompute in the backward pass. {_PLAN}"),
    ] = None,
    recompute: Annotated[
        str, typer.Option(rich_help_panel=_RUN, help="What it recomputes: block, attention, ops.")
    ] = "block",
    activation_offload: Annotated[
        bool,
        typer.Option(
            "--activation-offload", rich_help_panel=_RUN, help="Activations wait on the host."
        ),
    ] = False,
    attention: Annotated[
        str, typer.Option(rich_help_panel=_RUN, help="flash, sdpa or eager.")
    ] = "sdpa",
    loss: Annotated[
        str | None,
        typer.Option(rich_help_panel=_RUN, help="hf, chunked, liger, cut ... [default: trainer's]"),
    ] = None,
    compile: Annotated[  # noqa: A002
        bool, typer.Option("--compile", rich_help_panel=_RUN, help="torch.compile.")
    ] = False,
    trainer: Annotated[
        str,
        typer.Option(rich_help_panel=_RUN, help="hf, torchtune, torchtitan, megatron, litgpt ..."),
    ] = "hf",
    peft: Annotated[
        str | None, typer.Option(rich_help_panel=_PEFT, help="lora, qlora, ...")
    ] = None,
    lora_rank: Annotated[
        int, typer.Option(rich_help_panel=_PEFT, help="Rank of the adapters.")
    ] = 16,
    lora_targets: Annotated[
        str | None,
        typer.Option(rich_help_panel=_PEFT, help="q_proj,v_proj,... [default: every linear]"),
    ] = None,
    lora_dropout: Annotated[
        bool, typer.Option("--lora-dropout", rich_help_panel=_PEFT, help="Adapters use dropout.")
    ] = False,
    train_embeddings: Annotated[
        bool,
        typer.Option(
            "--train-embeddings", rich_help_panel=_PEFT, help="Embedding and head in full."
        ),
    ] = False,
    base: Annotated[
        str | None,
        typer.Option(rich_help_panel=_PEFT, help="16bit, nf4, nf4-dq, gptq-int4 or int8."),
    ] = None,
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", "--tp", rich_help_panel=_PARALLEL)
    ] = 1,
    sequence_parallel: Annotated[
        bool, typer.Option(rich_help_panel=_PARALLEL, help="Beside tensor parallelism.")
    ] = True,
    pipeline_parallel: Annotated[
        int, typer.Option("--pipeline-parallel", "--pp", rich_help_panel=_PARALLEL)
    ] = 1,
    context_parallel: Annotated[
        int, typer.Option("--context-parallel", "--cp", rich_help_panel=_PARALLEL)
    ] = 1,
    expert_parallel: Annotated[
        int, typer.Option("--expert-parallel", "--ep", rich_help_panel=_PARALLEL)
    ] = 1,
    params: Annotated[
        str | None, typer.Option(rich_help_panel=_SIZES, help="7B, 350M or a number.")
    ] = None,
    hidden: Annotated[int | None, typer.Option(rich_help_panel=_SIZES, help="Hidden size.")] = None,
    layers: Annotated[int | None, typer.Option(rich_help_panel=_SIZES)] = None,
    heads: Annotated[int | None, typer.Option(rich_help_panel=_SIZES)] = None,
    kv_heads: Annotated[int | None, typer.Option(rich_help_panel=_SIZES)] = None,
    intermediate: Annotated[
        int | None, typer.Option(rich_help_panel=_SIZES, help="Width of the MLP.")
    ] = None,
    vocab: Annotated[int | None, typer.Option(rich_help_panel=_SIZES)] = None,
    nodes: Annotated[int, typer.Option(rich_help_panel=_MACHINE, help="Nodes of such GPUs.")] = 1,
    host_memory: Annotated[
        float | None, typer.Option(rich_help_panel=_MACHINE, help="GiB of a node's host.")
    ] = None,
    nvme: Annotated[
        float | None, typer.Option(rich_help_panel=_MACHINE, help="GiB of a node's NVMe.")
    ] = None,
    disk: Annotated[
        float | None, typer.Option(rich_help_panel=_MACHINE, help="GiB of free disk, for --ledger.")
    ] = None,
    context_mib: Annotated[
        int | None,
        typer.Option(rich_help_panel=_MACHINE, help="MiB of an empty CUDA context, if measured."),
    ] = None,
    occupied: Annotated[
        float, typer.Option(rich_help_panel=_MACHINE, help="GiB that others hold on each GPU.")
    ] = 0,
    accounting: Annotated[
        str | None, typer.Option(help="deepspeed, torch or article (the rule of thumb).")
    ] = None,
    basis: Annotated[str, typer.Option(help="allocated, reserved or device.")] = "device",
    out: Annotated[Path | None, typer.Option(help="Write plan.json here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    recipe: Annotated[
        Path | None, typer.Option(rich_help_panel=_MORE, help="Plan the run of a recipe.")
    ] = None,
    recipe_out: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_MORE, help="Write the choice as a training recipe."),
    ] = None,
    data: Annotated[str, typer.Option(rich_help_panel=_MORE, help="The recipe's data.")] = "data/",
    emit: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_MORE,
            help="The choice for deepspeed, fsdp, accelerate, llamafactory, ms-swift or axolotl.",
        ),
    ] = None,
    emit_out: Annotated[
        Path | None, typer.Option(rich_help_panel=_MORE, help="A new folder for its files.")
    ] = None,
    frontier: Annotated[
        bool,
        typer.Option(
            "--frontier", rich_help_panel=_MORE, help="The largest micro-batch and sequence."
        ),
    ] = False,
    frontier_out: Annotated[
        Path | None, typer.Option(rich_help_panel=_MORE, help="Draw the frontier: FILE.svg.")
    ] = None,
    ledger: Annotated[
        bool,
        typer.Option(
            "--ledger",
            rich_help_panel=_MORE,
            help="Training, quantizing, evaluating and serving in one table.",
        ),
    ] = False,
    ds_config: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_MORE, help="Explain a DeepSpeed JSON for this run."),
    ] = None,
    explain_oom: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_MORE, help="Explain the out-of-memory message in a log."),
    ] = None,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace", rich_help_panel=_MORE, help="Count activations on the real model class."
        ),
    ] = False,
) -> None:
    """Memory by part for every strategy, the choice and why. Exit 0 fits, 1 nothing fits."""
    from qdeploy.cli.plan_options import PlanOptions
    from qdeploy.cli.plan_outputs import run

    given = dict(locals())
    raise typer.Exit(run(PlanOptions(**{name: given[name] for name in PlanOptions.names()})))
