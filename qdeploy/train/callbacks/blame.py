"""The first tensor of a forward pass that is not finite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from qdeploy.train.callbacks.phases import tensors


def first_bad_tensor(
    model: torch.nn.Module, arguments: Sequence[Any], named: Mapping[str, Any], *, whole: bool
) -> str | None:
    """Run `model` once more and name the first bad tensor in words; None when all are finite.

    Parameters are looked at before the module that uses them, outputs after it, so a module's
    output comes before that of the module that it is in. `whole`: finish the pass whatever is
    found, because other ranks take part in it.
    """
    search = _Search(whole=whole)
    try:
        for name, module in model.named_modules():
            search.watch(name, module)
        with torch.no_grad():
            model(*arguments, **named)
    except _Found:
        pass
    finally:
        search.close()
    return search.found


class _Found(Exception):  # noqa: N818 - leaves the forward pass, is no error
    pass


class _Search:
    """Hooks on all modules of one forward pass."""

    def __init__(self, *, whole: bool) -> None:
        self.found: str | None = None
        self._whole = whole
        self._handles: list[RemovableHandle] = []

    def watch(self, name: str, module: torch.nn.Module) -> None:
        """Look at this module when its turn comes."""
        self._handles.append(module.register_forward_pre_hook(self._before(name)))
        self._handles.append(module.register_forward_hook(self._after(name)))

    def close(self) -> None:
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()

    def _before(self, name: str) -> Callable[[torch.nn.Module, Any], None]:
        def hook(module: torch.nn.Module, _arguments: Any) -> None:
            for key, parameter in module.named_parameters(recurse=False):
                if self.found is None and not is_finite(parameter):
                    whole_name = f"{name}.{key}" if name else key
                    self._note(f"the parameter {whole_name}, before it is used")

        return hook

    def _after(self, name: str) -> Callable[[torch.nn.Module, Any, Any], None]:
        def hook(_module: torch.nn.Module, _arguments: Any, output: Any) -> None:
            if self.found is None and not all(is_finite(tensor) for tensor in tensors(output)):
                self._note(f"the activation that {name or 'the model'} returns, from finite ones")

        return hook

    def _note(self, text: str) -> None:
        self.found = text
        if not self._whole:
            raise _Found


def is_finite(tensor: torch.Tensor) -> bool:
    """All numbers of `tensor` are finite; whole numbers always are."""
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor.detach()).all())
