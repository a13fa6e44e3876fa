"""What a run is: two runs with the same fingerprint have the same losses."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from qdeploy.core.artifacts import sha256_file, sha256_text
from qdeploy.models.checkpoint import INDEX_NAME, SINGLE_NAME, open_checkpoint
from qdeploy.train.recipe import Recipe

# How often to save and where, what to report to: the losses do not depend on it.
_FREE = {"out", "save", "reporters", "model", "data"}
_FREE_DATA = {"path"}
_FREE_HARDWARE = {"host_memory_gib"}
_SAMPLE_BYTES = 4096


def recipe_digest(recipe: Recipe) -> str:
    """The sha256 of a recipe's settings; data and model, which count by content, left out."""
    document = recipe.model_dump(mode="json", by_alias=True, exclude=_FREE)
    document["hardware"] = recipe.hardware.model_dump(mode="json", exclude=_FREE_HARDWARE)
    document["data"] = recipe.data.model_dump(mode="json", exclude=_FREE_DATA)
    return sha256_text(json.dumps(document, sort_keys=True))


def model_digest(folder: Path) -> str:
    """The sha256 over config.json, and of each weight file its size, its names and shapes, and the
    first bytes of each tensor: enough to tell models apart without reading all of a large one.

    Raises InputError as `open_checkpoint` does.
    """
    digest = hashlib.sha256(sha256_file(folder / "config.json").encode())
    checkpoint = open_checkpoint(folder)
    for name in (INDEX_NAME, SINGLE_NAME):
        digest.update(name.encode() if (folder / name).is_file() else b"-")
    for name in checkpoint.files:
        path = folder / name
        digest.update(f"\n{name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            header = file.read(header_bytes)
            digest.update(header)
            for entry, described in sorted(json.loads(header).items()):
                if entry != "__metadata__":
                    begin, end = described["data_offsets"]
                    file.seek(8 + header_bytes + begin)
                    digest.update(file.read(min(_SAMPLE_BYTES, end - begin)))
    return digest.hexdigest()
