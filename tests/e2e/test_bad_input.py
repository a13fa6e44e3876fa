"""What a user can get wrong: one clear message, exit code 2, nothing half-written."""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qdeploy.cli.main import app

runner = CliRunner()
DATA = '{"prompt": "Where is my parcel?", "response": "It arrives on Tuesday."}\n'


@pytest.fixture
def model(tiny_llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text(DATA * 3, encoding="utf-8")
    return path


def _quantize(model: Path, data: Path, out: Path, *more: str) -> tuple[int, str]:
    arguments = ["quantize", str(model), "--calib", str(data), "--out", str(out), *more]
    result = runner.invoke(app, arguments)
    return result.exit_code, " ".join(result.output.split())


def _truncate(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _poison(model: Path) -> None:
    """Make the first value of the first BF16 tensor a NaN."""
    path = model / "model.safetensors"
    raw = bytearray(path.read_bytes())
    (header_bytes,) = struct.unpack("<Q", raw[:8])
    entry = json.loads(raw[8 : 8 + header_bytes])["model.layers.1.mlp.up_proj.weight"]
    start = 8 + header_bytes + entry["data_offsets"][0]
    raw[start : start + 2] = b"\xc0\x7f"
    path.write_bytes(bytes(raw))


def _edit_config(**changes: object) -> Callable[[Path], None]:
    def edit(model: Path) -> None:
        path = model / "config.json"
        config = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda m: (m / "model.safetensors").unlink(), "holds no model.safetensors"),
        (_truncate, "truncated or damaged"),
        (_poison, "model.layers.1.mlp.up_proj.weight"),
        (lambda m: (m / "config.json").unlink(), "holds no config.json"),
        (lambda m: (m / "config.json").write_text("{"), "not valid JSON"),
        (_edit_config(architectures=None), "names no architecture"),
        (_edit_config(model_type="lama"), "did you mean 'llama'"),
        (_edit_config(quantization_config={"quant_method": "gptq"}), "quantized already"),
        (lambda m: (m / "tokenizer.json").unlink(), "tokenizer"),
    ],
)
def test_damaged_models(
    model: Path, data: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(model)
    before = sorted(path.name for path in tmp_path.iterdir())
    code, shown = _quantize(model, data, tmp_path / "out")
    assert code == 2, shown
    assert message in shown
    assert "Traceback" not in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "data.jsonl"),
        (DATA + '{"prompt": "x"\n', "data.jsonl:2"),
        (DATA + "[1]\n", "data.jsonl:2"),
        (DATA + '{"body": "x"}\n', "data.jsonl:2"),
    ],
)
def test_bad_calibration_data(
    model: Path, data: Path, tmp_path: Path, content: str, message: str
) -> None:
    data.write_text(content, encoding="utf-8")
    code, shown = _quantize(model, data, tmp_path / "out")
    assert code == 2
    assert message in shown
    assert not (tmp_path / "out").exists()


def test_bad_options(model: Path, data: Path, tmp_path: Path) -> None:
    code, shown = _quantize(model, data, tmp_path / "out", "--scheme", "int9")
    assert (code, "did you mean 'int8'" in shown) == (2, True)
    code, shown = _quantize(model, data, model / "inside")
    assert code == 2, shown
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "x").write_text("mine")
    code, shown = _quantize(model, data, tmp_path / "there")
    assert (code, "already exists" in shown) == (2, True)
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["x"]
    result = runner.invoke(app, ["train-plan", "7B", "--gpus", "2xA100-80GBs"])
    assert result.exit_code == 2
    assert "A100-80GB" in result.output


def test_a_full_disk(model: Path, data: Path, tmp_path: Path) -> None:
    """/dev/full cannot hold a folder, so the write of the weights itself is made to fail."""
    code = (
        "import errno, sys\n"
        "import safetensors.torch\n"
        "def full(*a, **k): raise OSError(errno.ENOSPC, 'No space left on device', 'weights')\n"
        "import qdeploy.quant.output as output\n"
        "output.save_file = full\n"
        f"sys.argv = ['qdeploy', 'quantize', {str(model)!r}, '--calib', {str(data)!r},"
        f" '--out', {str(tmp_path / 'out')!r}]\n"
        "from qdeploy.cli.main import run\nrun()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 2, done.stderr
    assert "no space left on the disk" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "model"]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_leaves_nothing_half_written(
    data: Path, tmp_path: Path, stop: signal.Signals
) -> None:
    from tests.conftest import save_tiny_llama

    model = save_tiny_llama(tmp_path / "model", num_hidden_layers=200)
    command = [sys.executable, "-m", "qdeploy", "quantize", str(model)]
    command += ["--calib", str(data), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=dict(os.environ)
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(".out.*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(stop)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 2, shown
    assert "interrupted" in shown
    assert "Traceback" not in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "model"]
