"""The quantized folder: pieces written as they are finished, then named as a checkpoint.

A piece is one safetensors file: one for each block, one for everything else. A small model's
pieces are joined to one file at the end; a large one's become its shards.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from qdeploy.core.artifacts import write_text
from qdeploy.core.units import GIB
from qdeploy.models.checkpoint import INDEX_NAME, SINGLE_NAME

JOIN_BYTES = 2 * GIB
"""Up to this size all tensors go into one file."""

_METADATA = {"format": "pt"}
_CONFIG = "config.json"
# Files of the source folder that belong to its weights, not to the model.
_NOT_COPIED = (_CONFIG, INDEX_NAME, SINGLE_NAME)
_COPIED_SUFFIXES = (".json", ".jinja", ".model", ".txt", ".py")


def tensor_digest(tensor: Tensor) -> str:
    """The sha256 of a tensor's dtype, shape and bytes."""
    digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}\n".encode())
    digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    save_file(tensors, path, metadata=_METADATA)
    # safetensors leaves the file readable by its owner alone; a server often runs as another.
    path.chmod(0o644)


class Output:
    """Writes pieces into `folder` and remembers the digest of each tensor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.digests: dict[str, str] = {}
        self._pieces: list[tuple[Path, list[str], int]] = []

    def add(self, tensors: dict[str, Tensor]) -> None:
        """Write `tensors` as the next piece, at once."""
        path = self.folder / f"piece-{len(self._pieces):05d}.safetensors"
        stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        _save(stored, path)
        self.digests.update({name: tensor_digest(tensor) for name, tensor in stored.items()})
        size = sum(tensor.numel() * tensor.element_size() for tensor in stored.values())
        self._pieces.append((path, list(stored), size))

    def finish(self) -> None:
        """Give the pieces their final names: one file when small, shards and an index else."""
        total = sum(size for _, _, size in self._pieces)
        if total <= JOIN_BYTES:
            self._join()
            return
        weight_map = {}
        for number, (path, names, _) in enumerate(self._pieces, start=1):
            shard = f"model-{number:05d}-of-{len(self._pieces):05d}.safetensors"
            path.rename(self.folder / shard)
            weight_map.update(dict.fromkeys(names, shard))
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_text(self.folder / INDEX_NAME, json.dumps(index, indent=2) + "\n")

    def _join(self) -> None:
        tensors: dict[str, Tensor] = {}
        for path, names, _ in self._pieces:
            with safe_open(path, framework="pt") as file:
                tensors.update({name: file.get_tensor(name) for name in names})
        _save(tensors, self.folder / SINGLE_NAME)
        del tensors
        for path, _, _ in self._pieces:
            path.unlink()

    def write_config(self, config: dict[str, Any], quantization: dict[str, Any]) -> None:
        """The source's config.json with a `quantization_config`."""
        text = json.dumps(
            {**config, "quantization_config": quantization}, ensure_ascii=False, indent=2
        )
        write_text(self.folder / _CONFIG, text + "\n")

    def copy_side_files(self, source: Path) -> None:
        """Tokenizer, chat template, generation config and model code, byte for byte."""
        for path in sorted(source.iterdir()):
            if path.is_file() and path.suffix in _COPIED_SUFFIXES and path.name not in _NOT_COPIED:
                shutil.copyfile(path, self.folder / path.name)
