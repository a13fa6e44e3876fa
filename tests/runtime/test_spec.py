"""What --compare accepts."""

from __future__ import annotations

import pytest

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.runtime.spec import CandidateSpec, parse_candidate


@pytest.fixture
def folders(tmp_path):
    for name in ("model", "artifacts", "量化"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_precisions_of_the_model(folders):
    for precision in ("bf16", "fp16", "fp32"):
        spec = parse_candidate(precision, folders / "model", {})
        assert spec == CandidateSpec(precision, folders / "model", precision)


def test_name_and_folder(folders):
    spec = parse_candidate(f"int8={folders / 'artifacts'}", None, {})
    assert spec == CandidateSpec("int8", folders / "artifacts", None)
    spec = parse_candidate(f"整数={folders / '量化'}", None, {})
    assert spec == CandidateSpec("整数", folders / "量化", None)


def test_project_candidates_go_first(folders):
    project = {"int8": folders / "artifacts", "bf16": folders / "model"}
    assert parse_candidate("int8", None, project).precision is None
    assert parse_candidate("bf16", None, project) == CandidateSpec(
        "bf16", folders / "model", "bf16"
    )


def test_unknown_name_gives_choices(folders):
    with pytest.raises(UnknownNameError) as found:
        parse_candidate("int9", folders / "model", {"int8": folders / "artifacts"})
    assert "did you mean 'int8'" in found.value.hint
    assert "NAME=FOLDER" in found.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bf16", "no model was given"),
        ("a=", "names no folder"),
        ("a=nowhere", "no such model folder"),
        ("=artifacts", "no name"),
        ("../a=artifacts", "no name"),
        (".a=artifacts", "no name"),
        ("a/b=artifacts", "no name"),
    ],
)
def test_refused(folders, monkeypatch, text, message):
    monkeypatch.chdir(folders)
    with pytest.raises(InputError, match=message):
        parse_candidate(text, None, {})


def test_a_bare_folder_gets_a_hint(folders, monkeypatch):
    monkeypatch.chdir(folders)
    with pytest.raises(InputError, match="folder without a name") as found:
        parse_candidate("artifacts", None, {})
    assert found.value.hint == "write NAME=artifacts"
