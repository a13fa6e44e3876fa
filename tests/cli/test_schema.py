import json

import pytest
from typer.testing import CliRunner

from qdeploy.cli.main import app
from qdeploy.cli.schema import _SCHEMAS

runner = CliRunner()


@pytest.mark.parametrize("name", sorted(_SCHEMAS))
def test_every_schema_prints(name: str) -> None:
    result = runner.invoke(app, ["schema", name])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["type"] == "object"
    assert document["additionalProperties"] is False


def test_unknown_schema() -> None:
    assert runner.invoke(app, ["schema", "polcy"]).exit_code == 2
