"""What lies in a folder's safetensors files, from their headers alone (no torch, no weights read).

A safetensors file is: 8 bytes little-endian header length, that many bytes of JSON (name ->
dtype, shape, data_offsets relative to the end of the header), then the data
(https://github.com/huggingface/safetensors#format). Headers are checked against the file sizes,
so a truncated file is found before any work starts.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from qdeploy.core.artifacts import read_json, sha256_files
from qdeploy.core.errors import InputError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
    "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "U32": 4, "U64": 8,
}  # fmt: skip

_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: the file (a name in the folder) that holds it, its dtype, shape and bytes."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a model folder, by name."""

    folder: Path
    tensors: dict[str, TensorInfo]

    @property
    def files(self) -> list[str]:
        """Names of the weight files, sorted."""
        return sorted({info.file for info in self.tensors.values()})

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(info.size_bytes for info in self.tensors.values())

    @cached_property
    def digest(self) -> str:
        """The sha256 over config.json and all weight files; reads every byte."""
        return sha256_files(self.folder, ["config.json", *self.files])


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`.

    Raises InputError when weights are missing, pickled, truncated, or not as the index says.
    """
    index = folder / INDEX_NAME
    if index.is_file():
        return _open_indexed(folder, index)
    if (folder / SINGLE_NAME).is_file():
        return Checkpoint(folder, read_header(folder / SINGLE_NAME))
    pickles = sorted(p.name for p in folder.glob("*.bin")) + sorted(
        p.name for p in folder.glob("*.pt*")
    )
    if pickles:
        raise InputError(
            f"{folder} holds only pickled weights ({pickles[0]}), which can run code when read",
            hint="convert them to safetensors first",
        )
    raise InputError(f"{folder} holds no {SINGLE_NAME} and no {INDEX_NAME}")


def _open_indexed(folder: Path, index: Path) -> Checkpoint:
    data = read_json(index)
    weight_map = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index} has no weight_map")
    tensors: dict[str, TensorInfo] = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file:
            raise InputError(f"{index} names {file!r}, which lies outside the folder")
        if not (folder / file).is_file():
            raise InputError(
                f"{folder}: the index names {file}, which is missing",
                hint="copy or download the missing shard",
            )
        tensors.update(read_header(folder / file))
    lost = sorted(set(weight_map) - set(tensors))
    if lost:
        raise InputError(
            f"{folder}: {len(lost)} tensors of the index are in no file, first {lost[0]!r}"
        )
    return Checkpoint(folder, tensors)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Tensors of one safetensors file. Raises InputError when malformed or truncated."""
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise InputError(f"{path} is truncated: {file_bytes} bytes, less than a header")
        (header_bytes,) = struct.unpack("<Q", start)
        if header_bytes > min(_MAX_HEADER_BYTES, file_bytes - 8):
            raise InputError(
                f"{path} is truncated or no safetensors file: it has {file_bytes} bytes, "
                f"its header should have {header_bytes}"
            )
        try:
            header = json.loads(file.read(header_bytes))
        except (UnicodeDecodeError, json.JSONDecodeError):
            raise InputError(f"{path} is no safetensors file: its header is not JSON") from None
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    tensors = {name: _tensor_info(path, name, entry) for name, entry in entries.items()}
    data_end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    if 8 + header_bytes + data_end != file_bytes:
        raise InputError(
            f"{path} is truncated or damaged: it has {file_bytes} bytes, "
            f"its header describes {8 + header_bytes + data_end}",
            hint="copy or download the file again",
        )
    return tensors


def _tensor_info(path: Path, name: str, entry: Any) -> TensorInfo:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise InputError(f"{path}: the header entry of {name!r} is malformed") from None
    if dtype in DTYPE_BYTES and end - begin != prod(shape) * DTYPE_BYTES[dtype]:
        raise InputError(f"{path}: {name!r} has {end - begin} bytes, not what its shape needs")
    return TensorInfo(path.name, dtype, shape, end - begin)
