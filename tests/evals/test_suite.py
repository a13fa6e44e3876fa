from pathlib import Path
from typing import Any

import pytest

from qdeploy.core.errors import InputError
from qdeploy.core.shipped import shipped
from qdeploy.evals.suite import read_suite, sub_sample

from .fakes import qa_rows, write_suite

SHIPPED = ("short_qa", "classification", "extraction", "long_generation")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_suites_are_sound(name: str) -> None:
    suite = read_suite(shipped(f"evals/{name}.yaml"))
    assert suite.spec.name == name
    classes = suite.by_class()
    assert set(classes) == {f"{name}.en", f"{name}.zh"}
    assert min(map(len, classes.values())) >= 60


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"metrcs": ["contains"]}, "did you mean 'metrics'"),
        ({"metrics": ["contans"], "primary": "contans"}, "did you mean 'contains'"),
        ({"metrics": ["contains", "accuracy"]}, "metric 'accuracy' is for"),
        ({"metrics": ["contains", "contains"]}, "must differ"),
        ({"primary": "exact_match"}, "not among metrics"),
        ({"metrics": ["replacement_chars"], "primary": "replacement_chars"}, "higher is better"),
        ({"floor": "chance"}, "needs kind 'classification'"),
        ({"floor": float("nan")}, "floor"),
        ({"decoding": {"max_new_tokens": 5, "stop": "Q:"}}, 'write ["Q:"]'),
        ({"decoding": {"max_new_tokens": 5, "stop": ["\\n"]}}, "double quotes"),
        ({"decoding": {"max_new_tokens": 5, "stop": [""]}}, "empty stop"),
        ({"decoding": {"max_new_tokens": 0}}, "max_new_tokens"),
        ({"prompt": {"en": "{{ x"}}, "prompt.en: line 1"),
        ({"prompt": {}}, "prompt"),
        ({"schema": "qdeploy.suite/2"}, "qdeploy.suite/1"),
        ({"kind": "haiku"}, "kind"),
    ],
)
def test_bad_yaml_is_one_clear_error(tmp_path: Path, spec: dict[str, Any], message: str) -> None:
    path = write_suite(tmp_path, spec, qa_rows(2))
    with pytest.raises(InputError) as caught:
        read_suite(path)
    assert message in caught.value.message
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "en-0"}, "is already in line 1"),
        ({"answers": []}, "answers"),
        ({"answers": ["。"]}, "empty once punctuation"),
        ({"answers": "k1x"}, "answers"),
        ({"context": " "}, "must not be empty"),
        ({"lang": "fr"}, "no prompt for language 'fr'"),
        ({"answer": "x"}, "unknown key 'answer'; did you mean 'answers'?"),
    ],
)
def test_bad_items_name_file_and_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    rows = qa_rows(2)
    path = write_suite(tmp_path, {}, [rows[0], rows[1] | change])
    with pytest.raises(InputError) as caught:
        read_suite(path)
    assert message in caught.value.message
    assert f"{tmp_path / 'qa.jsonl'}:2" in caught.value.message


def test_bad_label(tmp_path: Path) -> None:
    row = {"id": "a", "lang": "en", "cluster": "c", "task": "t", "text": "x"}
    spec = {"kind": "classification", "metrics": ["accuracy"], "primary": "accuracy"}
    path = write_suite(tmp_path, spec, [row | {"labels": ["yes", "no"], "label": "maybe"}])
    with pytest.raises(InputError, match="label 'maybe' is not one of"):
        read_suite(path)


def test_no_items_and_broken_json(tmp_path: Path) -> None:
    path = write_suite(tmp_path, {}, [])
    with pytest.raises(InputError, match="nothing could be measured"):
        read_suite(path)
    (tmp_path / "qa.jsonl").write_text("\n{", encoding="utf-8")
    with pytest.raises(InputError, match=r"qa\.jsonl:2: not valid JSON"):
        read_suite(path)


def test_data_stays_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write_suite(tmp_path, {}, qa_rows(2))
    path = write_suite(tmp_path / "sub", {"data": "../qa.jsonl"}, qa_rows(2))
    with pytest.raises(InputError, match="own folder"):
        read_suite(path)


def test_a_key_twice_in_yaml(tmp_path: Path) -> None:
    path = write_suite(tmp_path, {}, qa_rows(2))
    path.write_text(path.read_text(encoding="utf-8") + "floor: 0.9\n", encoding="utf-8")
    with pytest.raises(InputError, match="key 'floor' is there twice"):
        read_suite(path)


def test_the_digest_follows_the_data(tmp_path: Path) -> None:
    path = write_suite(tmp_path, {}, qa_rows(2))
    before = read_suite(path).digest
    write_suite(tmp_path, {}, qa_rows(3))
    assert read_suite(path).digest != before


def test_sub_samples_spread_over_clusters(tmp_path: Path) -> None:
    items = read_suite(write_suite(tmp_path, {}, qa_rows(40, per_cluster=4))).items
    drawn = sub_sample(items, 10, seed=1)
    assert len({item.cluster for item in drawn}) == 10
    assert drawn == sub_sample(items, 10, seed=1)
    assert drawn != sub_sample(items, 10, seed=2)
    assert sub_sample(items, 12, seed=1)[0] in items
    assert {i.id for i in drawn} <= {i.id for i in sub_sample(items, 12, seed=1)}
    assert sub_sample(items, 99, seed=1) == items
    assert sub_sample(items, None, seed=1) == items
    assert sub_sample([], 3, seed=1) == []
    with pytest.raises(InputError):
        sub_sample(items, 0, seed=1)
