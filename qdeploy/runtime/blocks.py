"""Where a candidate departs from its baseline: the error of each decoder block by itself.

Both models' blocks are fed the baseline's input of that block, so an error does not travel on to
the blocks behind it and the damaged one stands out. Inside a block the outputs of the linear
layers are compared too. A layer that feeds a smoothing pair is left out: smoothing scales its
outputs on purpose, and a wrong scale there shows in the layer behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from qdeploy.core.errors import InputError, RunError, UnknownNameError
from qdeploy.models.family import family_of


@dataclass(frozen=True)
class BlockErrors:
    """Relative squared errors ||c - b||^2 / ||b||^2 of candidate c against baseline b."""

    blocks: list[float] = field(default_factory=list)
    """Of each decoder block's update (output - input)."""
    layers: dict[str, float] = field(default_factory=dict)
    """Of linear layers' outputs, by path: '3.self_attn.q_proj'. Empty for unknown families."""


@torch.no_grad()
def block_errors(
    baseline: PreTrainedModel, candidate: PreTrainedModel, input_ids: Tensor
) -> BlockErrors:
    """The errors of all decoder blocks, and of the linear layers in them.

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
    errors = BlockErrors()
    hooks = []
    for block, other in pairs:
        layers = _Layers(_comparable_layers(baseline), block, other)
        compare = _comparison(other, errors, layers)
        hooks += [block.register_forward_hook(compare, with_kwargs=True), *layers.hooks]
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


def _comparable_layers(model: PreTrainedModel) -> list[str]:
    """Linear layers of a block whose outputs quantization leaves at their scale."""
    try:
        family = family_of(model.config.to_dict())
    except UnknownNameError:
        return []
    scaled = {pair.source for pair in family.pairs}
    return [linear for linear in family.linears if linear not in scaled]


class _Layers:
    """Outputs of the linear layers of a block in both models, as one forward pass gives them."""

    def __init__(self, names: list[str], block: nn.Module, other: nn.Module) -> None:
        self._outputs: dict[tuple[str, bool], Tensor] = {}
        self._names = names
        self.hooks = [
            module.get_submodule(name).register_forward_hook(self._note(name, module is other))
            for module in dict.fromkeys((block, other))
            for name in names
        ]

    def _note(self, name: str, is_candidate: bool) -> Callable[[Any, Any, Tensor], None]:
        def note(_: Any, __: Any, output: Tensor) -> None:
            self._outputs[name, is_candidate] = output

        return note

    def errors(self) -> dict[str, float]:
        """Relative squared error of each layer's output; the outputs are forgotten."""
        found = {}
        for name in self._names:
            base = self._outputs.get((name, False), self._outputs[name, True]).double()
            difference = self._outputs[name, True].double() - base
            power = float(base.square().sum())
            found[name] = float(difference.square().sum()) / power if power else 0.0
        self._outputs.clear()
        return found


def _comparison(candidate_block: nn.Module, errors: BlockErrors, layers: _Layers) -> Any:
    """A forward hook that runs `candidate_block` on the same input and adds the errors."""

    def compare(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        entered = args[0] if args else kwargs["hidden_states"]
        update = (_hidden(output) - entered).double()
        other = (_hidden(candidate_block.forward(*args, **kwargs)) - entered).double()
        error = float((other - update).square().sum() / update.square().sum())
        if error != error or error == float("inf"):
            raise RunError(
                f"decoder block {len(errors.blocks)} computes NaN or infinity, or changes nothing",
                hint="check the weights of that block",
            )
        index = len(errors.blocks)
        errors.blocks.append(error)
        errors.layers.update({f"{index}.{name}": e for name, e in layers.errors().items()})

    return compare


def _hidden(output: Any) -> Tensor:
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden
