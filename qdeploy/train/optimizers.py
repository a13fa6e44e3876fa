"""The optimizers of recipes under the names that transformers' Trainer gives them."""

from __future__ import annotations

from importlib.util import find_spec

from qdeploy.core.errors import InputError, ResourceError, UnknownNameError
from qdeploy.train.recipe import Recipe
from qdeploy.train.request import CPU

_BITSANDBYTES = {
    "adamw8bit": "adamw_bnb_8bit",
    "paged_adamw": "paged_adamw_32bit",
    "paged_adamw8bit": "paged_adamw_8bit",
    "lion": "lion_32bit",
}
_PLAIN = {
    "adamw_foreach": "adamw_torch",
    "adafactor": "adafactor",
    "sgd": "sgd",
    "sgd_momentum": "sgd",
}
_MOMENTUM = "momentum=0.9"


def optimizer_arguments(recipe: Recipe) -> dict[str, str]:
    """`optim` and `optim_args` of TrainingArguments.

    Raises UnknownNameError, InputError for an optimizer that the Trainer lacks or that needs a
    GPU, ResourceError where bitsandbytes is not installed.
    """
    name, on_cpu = recipe.optimizer.name, recipe.hardware.gpu == CPU
    if recipe.optimizer.in_backward:
        raise InputError(
            "optimizer.in_backward: TRL's trainer steps after the backward pass",
            hint="set it to false",
        )
    if name == "adamw":
        # The fused form updates in place, as the plan counts it.
        return {"optim": "adamw_torch_fused"}
    if name in _BITSANDBYTES:
        if on_cpu:
            raise InputError(f"optimizer {name} needs a GPU", hint="use adamw on CPUs")
        if find_spec("bitsandbytes") is None:
            raise ResourceError(
                f"optimizer {name} needs bitsandbytes, which is not installed",
                hint="pip install 'qdeploy[train]'",
            )
        return {"optim": _BITSANDBYTES[name]}
    if name not in _PLAIN:
        raise UnknownNameError("optimizer", name, ["adamw", *_BITSANDBYTES, *_PLAIN])
    arguments = {"optim": _PLAIN[name]}
    return arguments | ({"optim_args": _MOMENTUM} if name == "sgd_momentum" else {})
