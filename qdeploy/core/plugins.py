"""Plugins are files: `qdeploy/PACKAGE/NAME.py` or `NAME.toml` is called NAME on the command line.

No registry and no decorator: to add one, add a file and its test. A dash in a name stands for an
underscore in the file's name.
"""

from __future__ import annotations

import importlib
import importlib.resources
from types import ModuleType

from qdeploy.core.errors import UnknownNameError


def plugin_names(package: str, suffix: str = ".py") -> list[str]:
    """The names of all plugins in `package` ('qdeploy.plan.gpus'), sorted."""
    return sorted(
        entry.name.removesuffix(suffix)
        for entry in importlib.resources.files(package).iterdir()
        if entry.name.endswith(suffix) and not entry.name.startswith("_")
    )


def load_plugin(package: str, name: str, kind: str) -> ModuleType:
    """The module of plugin `name`. Raises UnknownNameError with the nearest name."""
    module = name.replace("-", "_")
    choices = plugin_names(package)
    if module not in choices:
        raise UnknownNameError(kind, name, [choice.replace("_", "-") for choice in choices])
    return importlib.import_module(f"{package}.{module}")
