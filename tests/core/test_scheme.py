from pathlib import Path

import pytest

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.core.scheme import load_scheme, scheme_names

TEXT = """schema: qdeploy.scheme/1
description: 测试
weights: {bits: 8, granularity: channel, symmetric: true}
activations: {bits: 8, granularity: token, symmetric: true, dynamic: true}
algorithms: [rtn]
format: compressed-tensors
"""


@pytest.mark.parametrize("name", scheme_names())
def test_shipped_schemes_load_by_name(name: str) -> None:
    scheme = load_scheme(name)
    assert scheme.name == name


@pytest.mark.parametrize(
    ("name", "precision"),
    [("int8-rtn", "w8-channel-sym a8-token"), ("int4-rtn", "w4-group64-sym a16")],
)
def test_precision_in_short(name: str, precision: str) -> None:
    assert load_scheme(name).precision == precision


def test_int8_smooths_and_rounds() -> None:
    assert load_scheme("int8").algorithms == ["smoothquant", "rtn"]


def test_unknown_name_shows_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_scheme("int-8")
    assert "did you mean 'int8'" in (caught.value.hint or "")


def test_a_path_is_a_scheme_too(tmp_path: Path) -> None:
    (tmp_path / "方案.yaml").write_text(TEXT, encoding="utf-8")
    scheme = load_scheme(str(tmp_path / "方案.yaml"))
    assert scheme.name == "方案"
    assert scheme.ignore == ("lm_head",)


def test_unsupported_precision_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(TEXT.replace("bits: 8, granularity: channel", "bits: 3, granularity: channel"))
    with pytest.raises(InputError, match=r"weights\.bits"):
        load_scheme(str(path))


@pytest.mark.parametrize(
    "weights",
    [
        "{bits: 4, granularity: group, symmetric: true}",
        "{bits: 8, granularity: channel, group_size: 32, symmetric: true}",
        "{bits: 4, granularity: group, group_size: 48, symmetric: true}",
    ],
)
def test_groups_have_a_size_that_kernels_know(tmp_path: Path, weights: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(TEXT.replace("{bits: 8, granularity: channel, symmetric: true}", weights, 1))
    with pytest.raises(InputError, match="group_size"):
        load_scheme(str(path))


def test_ignore_takes_names_and_expressions(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(TEXT + "ignore: [lm_head, 're:.*layers\\.0\\..*down_proj$']\n")
    scheme = load_scheme(str(path))
    assert scheme.ignores("lm_head")
    assert scheme.ignores("model.layers.0.mlp.down_proj")
    assert not scheme.ignores("model.layers.10.mlp.down_proj")
    assert not scheme.ignores("model.lm_head")
