import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from qdeploy.core.errors import InputError
from qdeploy.models.checkpoint import INDEX_NAME, SINGLE_NAME, open_checkpoint


def _save(folder: Path, name: str = SINGLE_NAME) -> Path:
    (folder / "config.json").write_text("{}")
    tensors = {
        "a.weight": torch.zeros(3, 5, dtype=torch.bfloat16),
        "b.weight": torch.ones(7, dtype=torch.int8),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(1.0),
    }
    save_file(tensors, folder / name)
    return folder / name


def test_headers_say_what_torch_saved(tmp_path: Path) -> None:
    _save(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    info = checkpoint.tensors["a.weight"]
    assert (info.dtype, info.shape, info.size_bytes) == ("BF16", (3, 5), 30)
    assert checkpoint.tensors["scalar"].shape == ()
    assert checkpoint.size_bytes == 30 + 7 + 0 + 4


@pytest.mark.parametrize("keep", [0, 4, 20, -1])
def test_truncation_at_any_place_is_found(tmp_path: Path, keep: int) -> None:
    path = _save(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: keep if keep >= 0 else len(data) - 1])
    with pytest.raises(InputError, match="truncated"):
        open_checkpoint(tmp_path)


def test_files_that_are_no_safetensors(tmp_path: Path) -> None:
    path = _save(tmp_path)
    path.write_bytes(struct.pack("<Q", 4) + b"oops")
    with pytest.raises(InputError, match="header is not JSON"):
        open_checkpoint(tmp_path)
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(InputError, match="no safetensors file"):
        open_checkpoint(tmp_path)


def test_shape_and_bytes_must_agree(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / SINGLE_NAME
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    with pytest.raises(InputError, match="not what its shape needs"):
        open_checkpoint(tmp_path)


def test_index_with_a_missing_shard_or_tensor(tmp_path: Path) -> None:
    _save(tmp_path, "one.safetensors")
    index = tmp_path / INDEX_NAME
    index.write_text(json.dumps({"weight_map": {"a.weight": "one.safetensors"}}))
    assert "a.weight" in open_checkpoint(tmp_path).tensors
    index.write_text(json.dumps({"weight_map": {"a.weight": "two.safetensors"}}))
    with pytest.raises(InputError, match=r"two\.safetensors, which is missing"):
        open_checkpoint(tmp_path)
    index.write_text(json.dumps({"weight_map": {"c": "one.safetensors"}}))
    with pytest.raises(InputError, match="first 'c'"):
        open_checkpoint(tmp_path)


def test_index_must_not_leave_the_folder(tmp_path: Path) -> None:
    index = tmp_path / INDEX_NAME
    index.write_text(json.dumps({"weight_map": {"a": "../one.safetensors"}}))
    with pytest.raises(InputError, match="outside the folder"):
        open_checkpoint(tmp_path)


def test_pickles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(InputError, match="pickled"):
        open_checkpoint(tmp_path)


def test_digest_changes_with_any_byte(tmp_path: Path) -> None:
    path = _save(tmp_path)
    before = open_checkpoint(tmp_path).digest
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert open_checkpoint(tmp_path).digest != before
