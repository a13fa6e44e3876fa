import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from qdeploy.calib.audit import CalibAudit, audit
from qdeploy.calib.data import read_data
from qdeploy.cli.calib import calib_app
from qdeploy.core.artifacts import read_artifact
from qdeploy.core.errors import InputError
from qdeploy.core.shipped import shipped

PASSAGE = "The night ferry leaves the old harbour at nine and comes back before the sun rises."
ROWS = [
    {"prompt": "How do I return shoes?", "response": "Within 30 days, unworn."},
    {"prompt": "how do i return SHOES", "response": "within 30 days unworn"},
    {
        "messages": [
            {"role": "system", "content": "你是客服。"},
            {"role": "user", "content": "我的手机是13812345678,请回电。"},
        ]
    },
    {"text": f"{PASSAGE} 安静的海面上没有风。"},
]


@pytest.fixture
def evals(write_rows):
    items = [{"id": 1, "inner": {"context": [PASSAGE]}}, {"id": 2, "prompt": "Sing."}]
    return write_rows(items, "evals/ferry.jsonl").parent


def test_audit_counts(write_rows, evals, tokenizer):
    data = write_rows(ROWS, "data/rows.jsonl").parent
    (data / "more.txt").write_text("Ein Absatz.\n\n12345", encoding="utf-8")
    found = audit(data, tokenizer=tokenizer, evals=evals)
    assert (found.rows, found.chats, found.texts) == (6, 3, 3)
    assert found.by_reader == {"jsonl": 4, "txt": 2}
    assert (found.with_system, found.unanswered) == (1, 1)
    assert found.scripts == {"LATIN": 4, "CJK": 1, "NONE": 1}
    lengths = sorted(
        len(row.text or "\n".join(text for _, text in row.messages)) for row in read_data(data)
    )
    assert found.characters.min == lengths[0] == 5
    assert found.characters.median == lengths[2]
    assert found.characters.p95 == found.characters.max == lengths[-1]
    assert found.characters.total == sum(lengths)
    assert found.tokens.min == 6  # bos and five digits
    assert (found.duplicates.exact, found.duplicates.near) == (1, 0)
    assert [suite.leaked for suite in found.leakage] == [1]
    assert found.leakage[0].examples[0].row.endswith("rows.jsonl:4")
    assert found.pii["cn_mobile"] == 1
    assert found.pii_rows == 1
    assert [finding.level for finding in found.findings] == ["block", "warn", "warn", "warn"]
    assert found.blocked


def test_han_share_is_of_letters(write_rows):
    found = audit(write_rows([{"text": "量化ab12,。"}]))
    assert found.han_share == 0.5
    assert found.tokens is None
    assert found.leakage == []
    assert not found.blocked


def test_a_shared_system_message_makes_no_duplicates(write_rows):
    system = " ".join(f"rule{n}" for n in range(200))
    rows = [{"system": system, "prompt": f"q{n}", "response": f"a{n}"} for n in range(5)]
    assert audit(write_rows(rows)).duplicates.near == 0


def test_command_reports_and_fails_on_leakage(write_rows, evals, tmp_path, tokenizer):
    data = write_rows(ROWS)
    tokenizer.save_pretrained(tmp_path / "model")
    arguments = ["check", str(data), "--evals", str(evals), "--model", str(tmp_path / "model")]
    shown = CliRunner().invoke(calib_app, arguments)
    assert shown.exit_code == 1
    assert "1 of 2 items leaked" in shown.output
    assert "data.jsonl:4 repeats" in shown.output
    assert "1 cn_mobile" in shown.output
    printed = CliRunner().invoke(calib_app, [*arguments, "--json"])
    assert printed.exit_code == 1
    (tmp_path / "audit.json").write_text(printed.stdout, encoding="utf-8")
    assert read_artifact(tmp_path / "audit.json", CalibAudit).rows == 4
    for output in (shown.output, printed.output):
        assert "13812345678" not in output
        assert "harbour" not in output


def test_command_passes_clean_data_against_the_shipped_suites(write_rows):
    data = write_rows([{"prompt": "退货要几天?", "response": "七天。"}])
    shown = CliRunner().invoke(calib_app, ["check", str(data), "--json"])
    assert shown.exit_code == 0
    assert len(json.loads(shown.stdout)["leakage"]) == len(list(shipped("evals").glob("*.jsonl")))


def test_bad_input_is_an_input_error(tmp_path, write_rows):
    missing = CliRunner().invoke(calib_app, ["check", str(tmp_path / "none")])
    assert isinstance(missing.exception, InputError)
    data = write_rows([{"text": "a"}])
    (tmp_path / "bad").mkdir()
    with pytest.raises(InputError, match="no evaluation items"):
        audit(data, evals=tmp_path / "bad")
    (tmp_path / "bad" / "x.jsonl").write_text("{}\n{")
    with pytest.raises(InputError, match=r"x\.jsonl:2 is not JSON"):
        audit(data, evals=tmp_path / "bad")


def test_check_without_a_model_imports_no_torch(write_rows):
    code = (
        "import sys, pathlib; from qdeploy.calib.audit import audit; "
        f"audit(pathlib.Path({str(write_rows(ROWS))!r})); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_shipped_calibration_data():
    found = audit(shipped("calib"), evals=shipped("evals"))
    assert found.rows >= 200
    assert found.chats == found.rows
    assert set(found.scripts) == {"LATIN", "CJK"}
    assert (found.unanswered, found.duplicates.exact, found.duplicates.near) == (0, 0, 0)
    assert [suite.leaked for suite in found.leakage] == [0] * len(found.leakage)
    assert found.findings == []
