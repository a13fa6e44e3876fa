"""The demo's real model through the commands: `make test-real`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from qdeploy.cli.demo_model import demo_model
from qdeploy.cli.main import app

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
runner = CliRunner()
SHORT = ["--suite", "short_qa", "--suite", "classification"]


@pytest.fixture(scope="module")
def bf16() -> Path:
    return demo_model()


@pytest.fixture(scope="module")
def int8(bf16: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("quantized") / "int8"
    arguments = ["quantize", str(bf16), "--calib", str(ROOT / "calib"), "--out", str(out)]
    result = runner.invoke(app, [*arguments, "--samples", "16"])
    assert result.exit_code == 0, result.output
    return out


def _eval(bf16: Path, compare: str, out: Path, limit: int) -> None:
    """Evaluate on a few items."""
    arguments = ["eval", str(bf16), "--compare", compare, "--out", str(out)]
    result = runner.invoke(app, [*arguments, "--limit", str(limit), "--noise", "none", *SHORT])
    assert result.exit_code == 0, result.output


def _gate(out: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Exit code and verdict."""
    code = runner.invoke(app, ["gate", str(out), *more]).exit_code
    return code, json.loads((out / "verdict.json").read_text(encoding="utf-8"))


def _sabotaged(int8: Path, out: Path, *prefixes: str) -> Path:
    """A copy of `int8` with the weight scales under the prefixes multiplied by 1.5."""
    shutil.copytree(int8, out)
    for path in out.glob("*.safetensors"):
        tensors = load_file(path)
        for name in tensors:
            if name.startswith(prefixes) and name.endswith(".weight_scale"):
                tensors[name] = (tensors[name].float() * 1.5).to(tensors[name].dtype)
        save_file(tensors, path, metadata={"format": "pt"})
    return out


def test_the_int8_folder_answers_in_transformers(int8: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(int8)
    model = AutoModelForCausalLM.from_pretrained(int8, dtype=torch.float32)
    answers = []
    for question, word in (
        ("What is the capital of France?", "Paris"),
        ("How many days are in a week?", "7 seven"),
        ("What is the opposite of hot?", "cold"),
        ("What is 2 plus 2?", "4 four"),
        ("In which country is Tokyo?", "Japan"),
        ("What is the largest ocean on Earth?", "Pacific"),
    ):
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=False,
        )
        out = model.generate(ids, max_new_tokens=24, do_sample=False)
        text = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        answers.append(any(part.lower() in text.lower() for part in word.split()))
    # One answer can flip on a near tie of the first token; the baseline gives all six.
    assert sum(answers) >= 5, answers


SABOTAGED = {
    "block": "model.layers.15.",
    "down": "model.layers.0.mlp.down_proj",
    "query": "model.layers.20.self_attn.q_proj",
    "value": "model.layers.29.self_attn.v_proj",
}


@pytest.fixture(scope="module")
def evaluated(bf16: Path, int8: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation of BF16, INT8, and INT8 files with the scales of one layer times 1.5."""
    folder = tmp_path_factory.mktemp("evaluated")
    bad = {name: _sabotaged(int8, folder / name, prefix) for name, prefix in SABOTAGED.items()}
    named = ",".join(f"{name}={path}" for name, path in {"int8": int8, **bad}.items())
    _eval(bf16, f"bf16,{named}", folder / "eval", limit=4)
    return folder / "eval"


@pytest.mark.parametrize("name", sorted(SABOTAGED))
def test_a_sabotaged_int8_is_rejected(evaluated: Path, name: str) -> None:
    code, verdict = _gate(evaluated, "--require", name)
    assert code == 1, verdict
    assert verdict["outcome"] == "FAIL"
    mine = [judged for judged in verdict["classes"] if judged["candidate"] == name]
    assert {judged["outcome"] for judged in mine} == {"FAIL"}
    assert name not in verdict["routing"].values()


def test_the_good_int8_is_not_rejected(evaluated: Path) -> None:
    code, verdict = _gate(evaluated, "--require", "int8")
    assert code in (0, 3), verdict
    mine = [judged for judged in verdict["classes"] if judged["candidate"] == "int8"]
    assert "FAIL" not in {judged["outcome"] for judged in mine}


def test_bf16_under_another_name_is_never_called_worse(bf16: Path, tmp_path: Path) -> None:
    again = Path(shutil.copytree(bf16, tmp_path / "again"))
    _eval(bf16, f"bf16,again={again}", tmp_path / "eval", limit=4)
    code, verdict = _gate(tmp_path / "eval")
    assert code == 2
    assert "the baseline's very weights" in json.dumps(verdict)
    policy = tmp_path / "policy.yaml"
    shipped = (ROOT / "evals/policies/default.yaml").read_text(encoding="utf-8")
    policy.write_text(
        shipped.replace("allow_same_weights: false", "allow_same_weights: true"), encoding="utf-8"
    )
    code, verdict = _gate(tmp_path / "eval", "--policy", str(policy))
    assert code in (0, 3), verdict
    assert "FAIL" not in {judged["outcome"] for judged in verdict["classes"]}


def test_the_demo_goes_the_whole_way(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    result = runner.invoke(app, ["demo", "--dir", str(folder), "--limit", "4", "--limit", "zh=1"])
    assert result.exit_code == 0, result.output
    written = {path.name for path in (folder / "artifacts/eval").iterdir()}
    assert {"report.html", "verdict.json", "junit.xml", "summary.md"} <= written
