"""What holds for every command: exit codes, one clear message, no torch where none is needed."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qdeploy.cli import main
from qdeploy.core.errors import InputError, RunError

runner = CliRunner()


def _python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["train-plan", "7B", "--gpus", "2xA100-80GB"],
                  ["train-plan", "--help"], ["gate", "--help"], ["gate", "nowhere"]]
)  # fmt: skip
def test_starts_without_torch(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\n"
        f"sys.argv = ['qdeploy', *{arguments!r}]\n"
        "from qdeploy.cli.main import run\n"
        "try:\n    run()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'matplotlib', 'scipy'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))\n"
    )
    done = _python(code, tmp_path)
    assert "HEAVY []" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("error", "code", "texts"),
    [
        (InputError("bad [x] 值", hint="do this"), 2, ["error: bad [x] 值", "hint: do this"]),
        (RunError("failed"), 1, ["error: failed"]),
        (KeyboardInterrupt(), 2, ["interrupted"]),
        (OSError(errno.ENOSPC, "No space left on device"), 2, ["no space left on the disk"]),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 2, ["Permission denied: /x"]),
    ],
)
def test_errors_are_one_clear_message(
    error: BaseException, code: int, texts: list[str], monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fail() -> None:
        raise error

    monkeypatch.setattr("qdeploy.cli.project.Path.is_file", lambda _: fail())
    result = runner.invoke(main.app, ["train-plan", "--gpus", "1xT4"])
    shown = result.output + "".join(capfd.readouterr())
    assert result.exit_code == code, shown
    for text in texts:
        assert text in shown
    assert "Traceback" not in shown


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("qdeploy.cli.project.Path.is_file", lambda _: fail())
    result = runner.invoke(main.app, ["train-plan", "--gpus", "1xT4"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_unknown_command_and_option() -> None:
    assert runner.invoke(main.app, ["quantise"]).exit_code == 2
    assert runner.invoke(main.app, ["gate", "--no-such"]).exit_code == 2


def test_output_to_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m qdeploy schema policy | head -c 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=tmp_path, capture_output=True, text=True, check=False, env=dict(os.environ),
    )  # fmt: skip
    assert "Traceback" not in done.stderr
