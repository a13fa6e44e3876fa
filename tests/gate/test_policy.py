from __future__ import annotations

from pathlib import Path

import pytest

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.core.shipped import shipped
from qdeploy.evals.scoring import metric
from qdeploy.gate.policy import read_policy
from qdeploy.gate.rule import parse_rule

HEAD = "schema: qdeploy.policy/1\nname: own\n"
RULE = "kinds: {short_qa: [{rule: non_inferior, metric: exact_match, margin: 0.05}]}\n"


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["default", "strict"])
def test_shipped_policies_ask_for_metrics_that_exist(name: str) -> None:
    policy = read_policy(shipped(f"evals/policies/{name}.yaml"))
    assert policy.name == name
    assert set(policy.kinds) == {"short_qa", "extraction", "classification", "long_generation"}
    for kind, rules in policy.kinds.items():
        assert any(rule.get("blocking", True) for rule in rules)
        for rule in rules:
            assert kind in metric(str(rule["metric"])).KINDS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + RULE + "alpa: 0.05\n", "did you mean 'alpha'?"),
        (HEAD + RULE + "alpha: 0.7\n", "alpha"),
        (HEAD + RULE + "alpha: .nan\n", "alpha"),
        (HEAD, "no rules"),
        ("schema: qdeploy.policy/2\nname: own\n" + RULE, "qdeploy.policy/2"),
        (HEAD + RULE.replace("margin: 0.05", "margn: 0.05"), "did you mean 'margin'?"),
        (HEAD + RULE.replace("0.05", "0"), "margin"),
        (HEAD + RULE.replace("rule: non_inferior, ", ""), "'rule' is missing"),
        (HEAD + RULE + "screens: [{rule: screen, metric: kl_mean}]\n", "max or min"),
        (HEAD + RULE + "screens: [{rule: screen, metric: kl_men, max: 1}]\n", "kl_mean"),
    ],
)
def test_a_wrong_policy_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_policy(_written(tmp_path, text))
    assert message in str(error.value)


def test_an_unknown_rule_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError) as error:
        read_policy(_written(tmp_path, HEAD + RULE.replace("non_inferior", "non_inferor")))
    assert "did you mean 'non-inferior'?" in str(error.value.hint)


def test_a_dash_stands_for_an_underscore() -> None:
    rule = {"rule": "non-inferior", "metric": "char_f1", "margin": 0.1}
    assert parse_rule(rule, "here").blocking


def test_the_digest_ignores_comments_and_follows_content(tmp_path: Path) -> None:
    first = read_policy(_written(tmp_path, HEAD + RULE)).digest()
    assert read_policy(_written(tmp_path, "# 说明\n" + HEAD + RULE)).digest() == first
    other = RULE.replace("0.05", "0.06")
    assert read_policy(_written(tmp_path, HEAD + other)).digest() != first
