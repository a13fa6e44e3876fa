from pathlib import Path

import pytest

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.core.shipped import find_yaml, shipped


def test_shipped_files_exist() -> None:
    assert shipped("evals/short_qa.yaml").is_file()
    assert shipped("recipes/quantize/int8.yaml").is_file()


def test_bare_names_and_paths(tmp_path: Path) -> None:
    own = tmp_path / "我的.yaml"
    own.write_text("x: 1")
    assert find_yaml(str(own), "evals", "suite") == own
    assert find_yaml("short_qa", "evals", "suite") == shipped("evals/short_qa.yaml")
    with pytest.raises(InputError, match="no such suite file"):
        find_yaml("none.yaml", "evals", "suite")
    with pytest.raises(UnknownNameError) as caught:
        find_yaml("short_aq", "evals", "suite")
    assert "did you mean 'short_qa'" in (caught.value.hint or "")
