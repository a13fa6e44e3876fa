"""From what a user names (a folder, a hub id) to a folder with config.json and safetensors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from qdeploy.core.artifacts import read_json
from qdeploy.core.errors import InputError
from qdeploy.models.family import model_type, refuse_other_kinds

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# Weights as pickles (*.bin, *.pt) are never fetched.
_WANTED = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def model_folder(name: str | Path) -> Path:
    """The local folder of a model: the folder itself, or the hub's snapshot of an id.

    Raises InputError when there is no such folder and the hub cannot be asked.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise InputError(
            f"{folder} is a file, a model is a folder in Hugging Face layout",
            hint="give the folder that holds config.json",
        )
    if not _HUB_ID.fullmatch(str(name)):
        raise InputError(f"no such model folder: {folder}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(name), allow_patterns=_WANTED))
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise InputError(
            f"{name} is neither a folder here nor a model the hub would give: "
            f"{reason[0] if reason else type(error).__name__}",
            hint="give a local folder in Hugging Face layout, or check the id and the network",
        ) from None


def read_config(folder: Path) -> dict[str, Any]:
    """The parsed config.json of a model folder.

    Raises InputError when it is missing, malformed, or names no architecture.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(
            f"{folder} holds no config.json", hint="give a folder in Hugging Face layout"
        )
    config = read_json(path)
    if not isinstance(config, dict):
        raise InputError(f"{path} must hold an object")
    try:
        refuse_other_kinds(config)
        model_type(config)
    except InputError as error:
        raise InputError(f"{path}: {error.message}", hint=error.hint) from None
    if not config.get("architectures"):
        raise InputError(
            f"{path} names no architecture",
            hint='add "architectures": ["...ForCausalLM"] as the model\'s own release has it',
        )
    return config
