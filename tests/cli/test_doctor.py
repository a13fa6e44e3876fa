import json

from typer.testing import CliRunner

from qdeploy.cli.main import app

runner = CliRunner()


def test_doctor_json_is_one_document() -> None:
    result = runner.invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert facts["machine"]["cores"] >= 1
    assert facts["packages"]["torch"].startswith("2.")
    assert set(facts["stages"]) == {"train-plan, gate", "quantize", "eval", "demo"}


def test_doctor_for_people() -> None:
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert "packages" in result.stdout
