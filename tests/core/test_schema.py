from pathlib import Path

import pytest

from qdeploy.core.errors import InputError
from qdeploy.core.schema import Schema, read_yaml, validate


class Inner(Schema):
    margin: float


class Outer(Schema):
    name: str
    rules: tuple[Inner, ...] = ()


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown key 'nmae'; did you mean 'name'"):
        validate(Outer, {"name": "x", "nmae": 1}, "policy.yaml")


def test_unknown_key_deep_inside_names_its_path() -> None:
    with pytest.raises(InputError, match=r"'rules.0.margni'; did you mean 'margin'"):
        validate(Outer, {"name": "x", "rules": [{"margin": 1, "margni": 2}]}, "p")


def test_missing_key_and_wrong_type() -> None:
    with pytest.raises(InputError, match=r"p: key 'name' is missing; rules: .* found 3"):
        validate(Outer, {"rules": 3}, "p")


@pytest.mark.parametrize("number", [".nan", ".inf"])
def test_nan_and_infinity_are_refused(tmp_path: Path, number: str) -> None:
    path = tmp_path / "策略.yaml"
    path.write_text(f"name: 策略\nrules: [{{margin: {number}}}]\n", encoding="utf-8")
    with pytest.raises(InputError, match="finite"):
        read_yaml(path, Outer)


def test_yaml_round_trip_with_chinese(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: 简答\nrules: [{margin: 0.05}]\n", encoding="utf-8")
    assert read_yaml(path, Outer) == Outer(name="简答", rules=(Inner(margin=0.05),))


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "found nothing"), ("- 1\n", "found list"), ("a: [", "not valid YAML")],
)
def test_malformed_yaml(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_yaml(path, Outer)


def test_missing_and_binary_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_yaml(tmp_path / "none.yaml", Outer)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read"):
        read_yaml(tmp_path / "b.yaml", Outer)


def test_python_objects_in_yaml_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(InputError, match="not valid YAML"):
        read_yaml(path, Outer)
