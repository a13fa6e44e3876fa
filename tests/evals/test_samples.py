from pathlib import Path

import pytest

from qdeploy.core.errors import InputError
from qdeploy.evals.results import Sample
from qdeploy.evals.samples import SampleFile, key_path_of, read_samples

KEY = {"weights": "w", "suite": "s"}


def sample(name: str) -> Sample:
    return Sample(
        id=name,
        task_class="qa.zh",
        lang="zh",
        cluster="c",
        prompt_hash="h",
        prompt_tokens=3,
        prompt="问",
        reference="答",
        output="好\u2028的\n",
        finish_reason="stop",
        output_tokens=2,
        scores={"contains": 1.0},
    )


def filled(path: Path) -> SampleFile:
    file = SampleFile(path, KEY)
    with file:
        file.add(sample("a"))
        file.add(sample("b"))
        file.seconds += 1.5
    return file


def test_each_sample_is_on_disk_at_once(tmp_path: Path) -> None:
    file = SampleFile(tmp_path / "bf16" / "qa.jsonl", KEY)
    with file:
        file.add(sample("a"))
        assert read_samples(file.path) == {"a": sample("a")}


def test_the_same_key_goes_on(tmp_path: Path) -> None:
    filled(tmp_path / "qa.jsonl")
    again = SampleFile(tmp_path / "qa.jsonl", KEY)
    assert list(again.done) == ["a", "b"]
    assert again.seconds == 1.5


@pytest.mark.parametrize("cut", [1, 30])
def test_a_line_cut_by_a_kill_is_dropped(tmp_path: Path, cut: int) -> None:
    path = filled(tmp_path / "qa.jsonl").path
    path.write_bytes(path.read_bytes()[:-cut])
    file = SampleFile(path, KEY)
    assert list(file.done) == ["a"]
    with file:
        file.add(sample("b"))
    assert list(read_samples(path)) == ["a", "b"]


def test_another_key_is_refused_and_named(tmp_path: Path) -> None:
    path = filled(tmp_path / "qa.jsonl").path
    with pytest.raises(InputError, match=r"another run \(different weights\)"):
        SampleFile(path, KEY | {"weights": "other"})
    assert list(read_samples(path)) == ["a", "b"]
    assert SampleFile(path, KEY | {"weights": "other"}, overwrite=True).done == {}
    assert read_samples(path) == {}


def test_samples_without_a_key_are_refused(tmp_path: Path) -> None:
    path = filled(tmp_path / "qa.jsonl").path
    key_path_of(path).unlink()
    with pytest.raises(InputError, match="without a key"):
        SampleFile(path, KEY)


def test_damage_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = filled(tmp_path / "qa.jsonl").path
    path.write_text("{\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(InputError, match=r"qa\.jsonl:1: not valid JSON"):
        read_samples(path)


def test_an_id_twice_is_an_error(tmp_path: Path) -> None:
    path = filled(tmp_path / "qa.jsonl").path
    text = path.read_text(encoding="utf-8")
    path.write_text(text + text, encoding="utf-8")
    with pytest.raises(InputError, match="'a' is there twice"):
        read_samples(path)
