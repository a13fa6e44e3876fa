"""`qdeploy train-plan`: will it train on these GPUs, and with which strategy?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qdeploy.cli.project import find_project, require

_PLAN = "[default: try all]"


def train_plan(
    model: Annotated[
        str | None, typer.Argument(help="A folder, a known model or hub id, or a size: 7B.")
    ] = None,
    gpus: Annotated[str | None, typer.Option(help="GPUs of a node: 2xA100-80GB.")] = None,
    nodes: Annotated[int, typer.Option(help="Nodes of such GPUs.")] = 1,
    micro_batch: Annotated[int, typer.Option(help="Sequences of one pass on one GPU.")] = 1,
    seq_len: Annotated[int, typer.Option(help="Tokens of a sequence.")] = 2048,
    precision: Annotated[str, typer.Option(help="bf16, fp16, fp32 or bf16-pure.")] = "bf16",
    optimizer: Annotated[str, typer.Option(help="adamw, adamw8bit, sgd, ...")] = "adamw",
    strategy: Annotated[
        str | None, typer.Option(help=f"none, ddp, zero1, zero2, zero3 or fsdp. {_PLAN}")
    ] = None,
    offload: Annotated[
        str | None, typer.Option(help=f"none, optimizer, all or nvme. {_PLAN}")
    ] = None,
    checkpointing: Annotated[
        bool | None, typer.Option(help=f"Recompute blocks in the backward pass. {_PLAN}")
    ] = None,
    attention: Annotated[str, typer.Option(help="flash, sdpa or eager.")] = "sdpa",
    peft: Annotated[str | None, typer.Option(help="lora or qlora.")] = None,
    lora_rank: Annotated[int, typer.Option(help="Rank of the adapters.")] = 16,
    loss: Annotated[str, typer.Option(help="hf, chunked or liger.")] = "hf",
    accounting: Annotated[
        str | None, typer.Option(help="deepspeed, torch or article (the rule of thumb).")
    ] = None,
    basis: Annotated[str, typer.Option(help="allocated, reserved or device.")] = "device",
    host_memory: Annotated[float | None, typer.Option(help="GiB of a node's host.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write plan.json here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print plan.json to stdout.")] = False,
) -> None:
    """Memory by part for every strategy, the choice and why. Exit 0 fits, 1 nothing fits."""
    from qdeploy.core.units import GIB
    from qdeploy.plan import PlanRequest, plan
    from qdeploy.plan.gpu import parse_gpus
    from qdeploy.plan.render import print_plan

    project = find_project()
    train = project.train if project else None
    given = require(model or (project.model if project else None), "model", "MODEL")
    count = parse_gpus(require(gpus or (train.gpus if train else None), "GPUs", "--gpus"))
    choices: dict[str, Any] = {
        "precision": precision, "optimizer": optimizer, "strategy": strategy, "offload": offload,
        "attention": attention, "peft": peft, "loss": loss, "accounting": accounting,
        "basis": basis,
    }  # fmt: skip
    result = plan(
        PlanRequest(
            model=given,
            gpu=count.name,
            gpus=count.count,
            nodes=nodes,
            micro_batch=micro_batch,
            seq_len=seq_len,
            checkpointing=checkpointing,
            lora_rank=lora_rank,
            host_memory_bytes=None if host_memory is None else int(host_memory * GIB),
            **choices,
        )
    )
    if out is not None:
        result.write(out)
    if json:
        typer.echo(result.to_json(), nl=False)
    else:
        print_plan(result)
    if result.chosen is None:
        raise typer.Exit(1)
