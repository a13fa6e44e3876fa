"""Every command of docs/train-plan.md, and what a user can get wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from qdeploy.cli.main import app

ROOT = Path(__file__).parents[2]
runner = CliRunner()


def run(*words: str) -> Result:
    return runner.invoke(app, ["train-plan", *words])


def commands() -> list[list[str]]:
    text = (ROOT / "docs" / "train-plan.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines() if line]


def test_the_commands_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in commands():
        assert words[:2] == ["qdeploy", "train-plan"]
        result = run(*words[2:])
        assert result.exit_code == 0, (words, result.output)
    assert (tmp_path / "recipe.yaml").is_file()
    assert (tmp_path / "frontier.svg").read_text(encoding="utf-8").startswith("<svg")
    assert list((tmp_path / "llamafactory").iterdir())
    assert json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))["chosen"]


def test_options_of_the_documentation_exist() -> None:
    text = (ROOT / "docs" / "train-plan.md").read_text(encoding="utf-8")
    help_text = runner.invoke(app, ["train-plan", "--help"], env={"COLUMNS": "200"}).output
    for option in set(re.findall(r"`(--[a-z-]+)", text)):
        assert option in help_text, option


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["7B", "--gpus", "0xA100-80GB"], "0 GPUs"),
        (["7B", "--gpus", "-2xA100-80GB"], "-2xA100-80GB"),
        (["7B", "--gpus", "2xA100-80GB", "--seq-len", "0"], "seq_len must be"),
        (["7B", "--gpus", "2xA100-80GB", "--micro-batch", "-1"], "micro_batch must be"),
        (["7B", "--gpus", "8xA100-80GB", "--global-batch", "12"], "does not divide"),
        (["7B", "--gpus", "8xA100-80GB", "--tp", "3"], "do not divide"),
        (["smollm2-135m", "--gpus", "8xA100-80GB", "--tp", "8"], "attention heads"),
        (["llama-3.1-8b", "--gpus", "1xA100-80GB", "--peft", "lora", "--lora-rank", "4097"],
         "rank 4097 is more than"),
        (["llama-3.1-8b", "--gpus", "1xA100-80GB", "--peft", "lora", "--lora-targets", "q_prj"],
         "q_proj"),
        (["--hidden", "4096", "--heads", "33", "--gpus", "1xT4"], "33"),
        (["--params", "7B", "--hidden", "64", "--layers", "2", "--gpus", "1xT4"], "7,000,000,000"),
        (["7B", "--params", "7B", "--gpus", "1xT4"], "by name"),
        (["--params", "-7B", "--gpus", "1xT4"], "-7B"),
        (["mistralai/Nothing-7B", "--gpus", "1xT4"], "choices"),
        (["7B", "--gpus", "2xA100-80GB,2xV100-32GB"], "BF16"),
        (["7B", "--gpus", "1xT4", "--host-memory", "nan"], "--host-memory"),
        (["7B", "--gpus", "1xA100-80GB", "--emit", "axolotle"], "axolotl"),
        (["7B", "--gpus", "1xA100-80GB", "--emit-out", "x"], "--emit"),
        (["7B", "--gpus", "1xA100-80GB", "--trainer", "trl"], "trainer"),
        (["7B", "--gpus", "1xA100-80GB", "--recipe-out", "there"], "there"),
        (["7B", "--gpus", "1xA100-80GB", "--ds-config", "no.json"], "no.json"),
        (["7B", "--gpus", "1xA100-80GB", "--explain-oom", "no.log"], "no.log"),
        (["--explain-oom", "there"], "out-of-memory"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("nothing here", encoding="utf-8")
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert says in result.output.replace("\n", " ")
    assert "Traceback" not in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "llava", "vision_config": {}}, "multimodal"),
        ({"model_type": "t5", "is_encoder_decoder": True, "architectures": ["T5"]}, "encoder"),
        ({"model_type": "resnet", "architectures": ["ResNet"]}, "resnet"),
        ({"architectures": ["X"]}, "model_type"),
        ({"model_type": "llama", "architectures": ["X"], "hidden_size": 64}, "num_attention_heads"),
        ([1, 2], "object"),
    ],
)
def test_another_kind_of_model(config: object, says: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    result = run(str(tmp_path), "--gpus", "1xA100-80GB")
    assert result.exit_code == 2
    assert says in result.output.replace("\n", " ")


def test_a_sequence_beyond_the_positions_is_a_warning() -> None:
    result = run("gpt2", "--gpus", "1xA100-80GB", "--seq-len", "2048")
    assert result.exit_code == 0
    assert "1024 positions" in result.output.replace("\n", " ")


def test_a_lint_error_is_exit_1(tmp_path: Path) -> None:
    config = tmp_path / "配置.json"
    config.write_text(
        '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2, "overlap_comm": true}}',
        "utf-8",
    )
    ok = run("7B", "--gpus", "4xA100-80GB", "--ds-config", str(config))
    assert ok.exit_code == 0, ok.output
    assert "overlap_comm" in ok.output
    old = run("7B", "--gpus", "8xV100-32GB", "--ds-config", str(config), "--json")
    assert old.exit_code == 1
    document = json.loads(old.stdout)
    assert document["findings"][0]["severity"] == "error"
    assert document["plan"] is None


def test_an_explained_log(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 30.00 GiB. GPU 0 has a "
        "total capacity of 79.15 GiB of which 1.20 GiB is free.\n",
        encoding="utf-8",
    )
    assert run("--explain-oom", str(log)).exit_code == 0
    words = ["llama-3.1-8b", "--gpus", "1xA100-80GB", "--explain-oom", str(log), "--json"]
    document = json.loads(run(*words).stdout)
    assert document["schema"] == "qdeploy.oom/1"
    assert document["per_gpu"] is not None


def test_it_starts_without_torch() -> None:
    script = (
        "import sys; sys.argv = ['qdeploy', 'train-plan', 'llama-3.1-70b', '--gpus', "
        "'8xA100-80GB']\n"
        "from qdeploy.cli.main import run\n"
        "try:\n    run()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=env, check=False)
    assert done.returncode == 0, done.stderr.decode()
