"""Where a candidate departs from its baseline: the error of each decoder block by itself.

Both models' blocks are fed the baseline's input of that block, so an error does not travel on to
the blocks behind it and the damaged one stands out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from qdeploy.core.errors import InputError, RunError, UnknownNameError
from qdeploy.models.family import family_of


@torch.no_grad()
def block_errors(
    baseline: PreTrainedModel, candidate: PreTrainedModel, input_ids: Tensor
) -> list[float]:
    """||D_c - D_b||^2 / ||D_b||^2 for each decoder block, D = output - input (its update).

    `input_ids` [B, T] without padding. Raises InputError when the models differ in their number of
    blocks, RunError when a block computes NaN or infinity or a baseline block changes nothing.
    """
    pairs = list(zip(decoder_blocks(baseline), decoder_blocks(candidate), strict=False))
    if len(pairs) != len(decoder_blocks(baseline)) or len(pairs) != len(decoder_blocks(candidate)):
        raise InputError(
            f"baseline has {len(decoder_blocks(baseline))} decoder blocks, "
            f"candidate has {len(decoder_blocks(candidate))}",
            hint="compare a model with its own quantized form",
        )
    errors: list[float] = []
    hooks = [
        block.register_forward_hook(_comparison(other, errors), with_kwargs=True)
        for block, other in pairs
    ]
    try:
        baseline(input_ids=input_ids, use_cache=False, logits_to_keep=1)
    finally:
        for hook in hooks:
            hook.remove()
    return errors


def decoder_blocks(model: PreTrainedModel) -> nn.ModuleList:
    """The list of decoder blocks: by the family's data, else the longest list of one class."""
    try:
        path = family_of(model.config.to_dict()).blocks
    except UnknownNameError:
        return _longest_list(model)
    blocks = model.get_submodule(path)
    if not isinstance(blocks, nn.ModuleList):
        raise InputError(f"{path} of {type(model).__name__} is no list of blocks")
    return blocks


def _longest_list(model: nn.Module) -> nn.ModuleList:
    lists = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len({type(item) for item in module}) == 1
    ]
    if not lists:
        raise InputError(f"{type(model).__name__} has no list of equal decoder blocks")
    return max(lists, key=len)


def _comparison(candidate_block: nn.Module, errors: list[float]) -> Any:
    """A forward hook that runs `candidate_block` on the same input and appends the error."""

    def compare(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        entered = args[0] if args else kwargs["hidden_states"]
        update = (_hidden(output) - entered).double()
        other = (_hidden(candidate_block.forward(*args, **kwargs)) - entered).double()
        error = float((other - update).square().sum() / update.square().sum())
        if error != error or error == float("inf"):
            raise RunError(
                f"decoder block {len(errors)} computes NaN or infinity, or changes nothing",
                hint="check the weights of that block",
            )
        errors.append(error)

    return compare


def _hidden(output: Any) -> Tensor:
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden
