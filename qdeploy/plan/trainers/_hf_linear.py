"""Inputs that linears of transformers' models keep, with autocast and with peft's adapters."""

from __future__ import annotations

from collections.abc import Sequence

from qdeploy.plan.saved import BlockRun, Saved, Split


def linear_inputs(
    run: BlockRun,
    names: Sequence[str],
    numbers: int,
    *,
    produced: int,
    split: Split = "sequence",
    kept: bool = False,
) -> list[Saved]:
    """What the linears `names` keep of one tensor that all of them read.

    `produced` are the bytes of a number of that tensor; `kept` says that another operation keeps
    the tensor anyway. A linear keeps its input for the gradient of its weight, in the type in
    which it multiplies. A cast makes a copy for each linear: autocast remembers casts of
    parameters only. A frozen linear keeps nothing; its adapter keeps what peft hands to it.
    """
    found = []
    whole = frozenset(name for name in names if name not in run.adapted)
    if produced == run.compute_bytes or not run.autocast:
        shared = whole | frozenset(name for name in names if _reads_as_is(run, name, produced))
        if shared and not kept:
            found.append(Saved(f"{names[0]}.input", numbers, 8 * produced, shared, split))
    else:
        found += [
            Saved(f"{name}.input", numbers, 8 * run.compute_bytes, frozenset({name}), split)
            for name in names
            if name in whole
        ]
    for name in names:
        if name in run.adapted:
            found += _adapter(run, name, numbers, produced, split)
    return found


def linear_output_bytes(run: BlockRun, read: int) -> int:
    """Bytes of a number that a linear writes: bitsandbytes' 4-bit linear as it `read` them."""
    if run.quantized_base:
        return read
    return run.compute_bytes


def _adapter(run: BlockRun, name: str, numbers: int, produced: int, split: Split) -> list[Saved]:
    needs = frozenset({name})
    bits = 8 * (run.compute_bytes if run.autocast else run.adapter_bytes)
    found = []
    if run.lora_dropout:
        found.append(Saved(f"{name}.lora_dropout", numbers, 8, needs, split))
    if not _reads_as_is(run, name, produced):
        found.append(Saved(f"{name}.lora_A.input", numbers, bits, needs, split))
    return [*found, Saved(f"{name}.lora_B.input", run.lora_rank, bits, needs)]


def _reads_as_is(run: BlockRun, name: str, produced: int) -> bool:
    """Whether an adapter keeps the very tensor that its linear reads."""
    if name not in run.adapted or run.lora_dropout:
        return False
    if run.autocast and run.quantized_base:
        return produced == run.compute_bytes
    if run.autocast:
        return produced == run.compute_bytes == run.adapter_bytes
    return produced == run.adapter_bytes
