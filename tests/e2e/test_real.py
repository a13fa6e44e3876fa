"""The demo's real model through the commands: `make test-real`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from qdeploy.cli.demo_model import demo_model
from qdeploy.cli.main import app
from qdeploy.gate.verdict import Outcome

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
    result = runner.invoke(app, [*arguments, "--samples", "32"])
    assert result.exit_code == 0, result.output
    return out


def _judge(bf16: Path, compare: str, out: Path, *more: str) -> tuple[int, dict[str, object]]:
    """Exit code and verdict of eval and gate on a few items."""
    arguments = ["eval", str(bf16), "--compare", compare, "--out", str(out), "--limit", "8"]
    result = runner.invoke(app, [*arguments, "--no-noise", *SHORT])
    assert result.exit_code == 0, result.output
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
        ("What color is the sky on a clear day?", "blue"),
        ("How many days are in a week?", "7 seven"),
        ("Which planet do we live on?", "Earth"),
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
    assert sum(answers) >= 3, answers


@pytest.mark.parametrize(
    "prefixes",
    [("model.layers.15.",), ("model.layers.0.mlp.down_proj",), ("model.layers.12.mlp.up_proj",)],
)
def test_a_sabotaged_int8_is_rejected(
    bf16: Path, int8: Path, tmp_path: Path, prefixes: tuple[str, ...]
) -> None:
    bad = _sabotaged(int8, tmp_path / "bad", *prefixes)
    code, verdict = _judge(bf16, f"bf16,bad={bad}", tmp_path / "eval")
    assert code == 1, verdict
    assert verdict["outcome"] == Outcome.FAIL.value


def test_the_good_int8_is_not_rejected(bf16: Path, int8: Path, tmp_path: Path) -> None:
    code, verdict = _judge(bf16, f"bf16,int8={int8}", tmp_path / "eval")
    assert code in (0, 3), verdict


def test_bf16_under_another_name_is_never_called_worse(bf16: Path, tmp_path: Path) -> None:
    again = Path(shutil.copytree(bf16, tmp_path / "again"))
    compare = f"bf16,again={again}"
    code, verdict = _judge(bf16, compare, tmp_path / "eval")
    assert code == 2
    assert "same weights" in json.dumps(verdict)
    policy = tmp_path / "policy.yaml"
    shipped = (ROOT / "evals/policies/default.yaml").read_text(encoding="utf-8")
    policy.write_text(
        shipped.replace("allow_same_weights: false", "allow_same_weights: true"), encoding="utf-8"
    )
    code, verdict = _judge(bf16, compare, tmp_path / "eval", "--policy", str(policy))
    assert code in (0, 3), verdict
    assert "FAIL" not in {judged["outcome"] for judged in verdict["classes"]}


def test_the_demo_goes_the_whole_way(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    result = runner.invoke(app, ["demo", "--dir", str(folder), "--limit", "6", "--limit", "zh=2"])
    assert result.exit_code == 0, result.output
    written = {path.name for path in (folder / "artifacts/eval").iterdir()}
    assert {"report.html", "verdict.json", "junit.xml", "summary.md"} <= written
