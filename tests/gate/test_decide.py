from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.evals.results import REPORT_NAME, Finding
from qdeploy.gate.decide import cheapest_first, decide
from qdeploy.gate.policy import Policy
from qdeploy.gate.verdict import EXIT_CODES, ClassVerdict, Outcome, Verdict, worst


def _of(verdict: Verdict, task_class: str, candidate: str = "int8") -> ClassVerdict:
    return next(
        c for c in verdict.classes if c.task_class == task_class and c.candidate == candidate
    )


def _pair(factory: Any, folder: Path, items: list[Any], **changes: Any) -> Path:
    candidates = [factory.info("bf16"), factory.info("int8")]
    return factory.write_evaluation(folder, items, candidates, **changes)


def test_equal_answers_pass_and_are_routed_to_the_cheaper(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    verdict = decide(
        _pair(
            factory, tmp_path, [factory.Items("short_qa", "en"), factory.Items("short_qa", "zh")]
        ),
        policy,
        [],
    )
    assert verdict.outcome is Outcome.PASS
    assert verdict.routing == {"short_qa.en": "int8", "short_qa.zh": "int8"}
    assert verdict.decision == "int8 for short_qa.en, short_qa.zh"
    rule = next(r for r in verdict.classes[0].rules if r.rule == "non_inferior")
    assert rule.measured == 0
    assert rule.low is not None
    assert -0.08 < rule.low < 0
    assert rule.limit == -0.08


def test_worse_long_texts_fail_there_alone(factory: Any, policy: Policy, tmp_path: Path) -> None:
    items = [factory.Items("short_qa", "en"), factory.Items("long_generation", "en")]
    items[1].scores["int8"] = factory.worse("loop_free", range(0, 60, 2))
    verdict = decide(_pair(factory, tmp_path, items), policy, [])
    assert verdict.outcome is Outcome.FAIL
    assert verdict.routing == {"short_qa.en": "int8", "long_generation.en": "bf16"}
    assert verdict.decision == (
        "int8 for short_qa.en; bf16 for long_generation.en (int8 is worse: loop_free)"
    )
    assert _of(verdict, "long_generation.en").outcome is Outcome.FAIL


def test_uncertain_is_inconclusive_with_the_items_needed(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    items = factory.Items("short_qa", "en")
    items.scores["int8"] = factory.worse("exact_match", range(3))
    items.scores["bf16"] = factory.worse("exact_match", range(30, 33))
    verdict = decide(_pair(factory, tmp_path, [items]), policy, [])
    assert verdict.outcome is Outcome.INCONCLUSIVE
    rule = next(r for r in verdict.classes[0].rules if r.rule == "non_inferior")
    assert rule.measured == 0
    assert rule.needed is not None
    assert rule.needed > 0
    assert f"about {rule.needed} more prompts are needed" in verdict.decision
    assert verdict.routing == {"short_qa.en": "bf16"}


def test_a_difference_at_the_margin_is_not_decided_by_more_items(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    items = factory.Items("short_qa", "en")
    items.scores["int8"] = factory.worse("exact_match", range(0, 12, 2))
    verdict = decide(_pair(factory, tmp_path, [items]), policy, [])
    rule = next(r for r in verdict.classes[0].rules if r.rule == "non_inferior")
    assert (rule.outcome, rule.needed) == (Outcome.INCONCLUSIVE, None)
    assert rule.measured == pytest.approx(-0.1)


def test_lower_is_better_turns_the_sign(factory: Any, tmp_path: Path) -> None:
    items = factory.Items("long_generation", "en")
    factory.METRICS["long_generation"].append("unit_rep_4")
    try:
        items.scores["bf16"] = factory.worse("unit_rep_4", range(60), 0.1)
        items.scores["int8"] = factory.worse("unit_rep_4", range(60), 0.5)
        rules = [{"rule": "non_inferior", "metric": "unit_rep_4", "margin": 0.1}]
        policy = Policy(name="test", kinds={"long_generation": rules})
        verdict = decide(_pair(factory, tmp_path, [items]), policy, [])
    finally:
        factory.METRICS["long_generation"].pop()
    rule = next(r for r in verdict.classes[0].rules if r.rule == "non_inferior")
    assert rule.outcome is Outcome.FAIL
    assert rule.measured == pytest.approx(0.4)
    assert rule.limit == 0.1
    assert rule.low is not None
    assert rule.high is not None
    assert 0.1 < rule.low <= rule.measured <= rule.high


def test_a_broken_layer_is_rejected_though_answers_hold(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    screens = [factory.screen("int8", block_errors=[0.002, 0.23, 0.003, 0.006])]
    folder = _pair(factory, tmp_path, [factory.Items("short_qa", "en")], screens=screens)
    verdict = decide(folder, policy, [])
    assert verdict.outcome is Outcome.FAIL
    assert verdict.decision == "bf16 for short_qa.en (int8 is broken: block_error)"
    assert "block 1 of 4" in _of(verdict, "short_qa.en").reason


def test_a_screen_that_was_not_measured_is_an_error(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    items = [factory.Items("short_qa", "en")]
    verdict = decide(_pair(factory, tmp_path / "none", items, screens=[]), policy, [])
    assert verdict.outcome is Outcome.ERROR
    no_blocks = [factory.screen("int8", block_errors=[])]
    verdict = decide(_pair(factory, tmp_path / "part", items, screens=no_blocks), policy, [])
    assert verdict.outcome is Outcome.ERROR
    assert "no block errors" in _of(verdict, "short_qa.en").reason


def test_screens_alone_never_pass(factory: Any, policy: Policy, tmp_path: Path) -> None:
    bare = Policy(name="bare", kinds={"other": policy.kinds["short_qa"]}, screens=policy.screens)
    verdict = decide(_pair(factory, tmp_path, [factory.Items("short_qa", "en")]), bare, [])
    assert verdict.outcome is Outcome.ERROR
    assert "no rule" in verdict.classes[0].reason


def test_rules_that_do_not_block_never_pass_a_class(factory: Any, tmp_path: Path) -> None:
    rule = {"rule": "non_inferior", "metric": "exact_match", "margin": 0.08, "blocking": False}
    policy = Policy(name="soft", kinds={"short_qa": [rule]})
    verdict = decide(_pair(factory, tmp_path, [factory.Items("short_qa", "en")]), policy, [])
    assert verdict.outcome is Outcome.ERROR


def test_a_rule_that_does_not_block_does_not_decide(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    items = factory.Items("short_qa", "en")
    items.scores["int8"] = factory.worse("char_f1", range(60))
    rules = [
        *policy.kinds["short_qa"],
        {"rule": "non_inferior", "metric": "char_f1", "margin": 0.05, "blocking": False},
    ]
    verdict = decide(
        _pair(factory, tmp_path, [items]), Policy(name="soft", kinds={"short_qa": rules}), []
    )
    assert verdict.outcome is Outcome.PASS
    assert [r.outcome for r in verdict.classes[0].rules if r.metric == "char_f1"] == [Outcome.FAIL]


def test_a_baseline_that_guesses_says_nothing(factory: Any, policy: Policy, tmp_path: Path) -> None:
    items = factory.Items("short_qa", "zh")
    for name in ("bf16", "int8"):
        items.scores[name] = factory.worse("exact_match", range(60))
    verdict = decide(_pair(factory, tmp_path, [items]), policy, [])
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "uninformative" in verdict.classes[0].reason
    assert "the baseline itself cannot do this task" in verdict.decision
    assert verdict.routing == {"short_qa.zh": "bf16"}


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_too_few_items_claim_nothing_either_way(
    factory: Any, policy: Policy, tmp_path: Path, score: float
) -> None:
    items = factory.Items("short_qa", "en", n=29)
    items.scores["int8"] = factory.worse("exact_match", range(29), score)
    verdict = decide(_pair(factory, tmp_path, [items]), policy, [])
    assert verdict.outcome is Outcome.INCONCLUSIVE
    needed = [r.needed for r in verdict.classes[0].rules if r.outcome is Outcome.INCONCLUSIVE]
    assert needed == [1, 1]


def test_one_item_and_one_cluster_are_inconclusive(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    few = policy.model_copy(update={"min_items": 1})
    for n, size in ((1, 1), (40, 40)):
        items = factory.Items("short_qa", "en", n=n, cluster_size=size)
        verdict = decide(_pair(factory, tmp_path / str(n), [items]), few, [])
        assert verdict.outcome is Outcome.INCONCLUSIVE


def test_same_weights_are_no_comparison_unless_allowed(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    twin = factory.info("int8", weights_digest=factory.info("bf16").weights_digest)
    found = Finding(level="error", candidate="int8", code="same_weights", message="same weights")
    factory.write_evaluation(
        tmp_path, [factory.Items("short_qa", "en")], [factory.info("bf16"), twin], findings=[found]
    )
    verdict = decide(tmp_path, policy, [])
    assert verdict.outcome is Outcome.ERROR
    assert "very weights" in verdict.classes[0].reason
    allowed = policy.model_copy(update={"allow_same_weights": True})
    assert decide(tmp_path, allowed, []).outcome is Outcome.PASS


def test_changed_samples_are_refused(factory: Any, policy: Policy, tmp_path: Path) -> None:
    folder = _pair(factory, tmp_path, [factory.Items("short_qa", "en")])
    path = folder / "samples/int8/short_qa.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("Wednesday", "Thursday"), "utf-8")
    verdict = decide(folder, policy, [])
    assert verdict.outcome is Outcome.ERROR
    assert "not those that the report was made from" in verdict.classes[0].reason


def test_missing_samples_of_the_baseline_concern_everyone(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    folder = _pair(factory, tmp_path, [factory.Items("short_qa", "en")])
    (folder / "samples/bf16/short_qa.jsonl").unlink()
    verdict = decide(folder, policy, [])
    assert verdict.outcome is Outcome.ERROR
    assert verdict.errors
    assert "samples samples/bf16/short_qa.jsonl are missing" in verdict.decision


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: lines[:-1], "1 items without an answer"),
        (lambda lines: [*lines, lines[0]], "is there twice"),
        (lambda lines: [*lines, lines[0].replace("-000", "-999")], "items that the baseline lacks"),
        (lambda lines: [lines[0].replace('"prompt_hash": "', '"prompt_hash": "x'), *lines[1:]],
         "items with other prompt tokens"),
        (lambda lines: [lines[0].replace('"exact_match": 1.0', '"exact_match": NaN'), *lines[1:]],
         "holds NaN"),
        (lambda lines: [lines[0].replace('"exact_match": 1.0', '"exact_match": null'), *lines[1:]],
         "is no sample"),
        (lambda lines: [lines[0].replace('"exact_match": 1.0', '"exact_match": 1e999'), *lines[1:]],
         "is no sample"),
        (lambda lines: ["{broken", *lines[1:]], "is no sample"),
    ],
)  # fmt: skip
def test_unfair_pairs_are_an_error(
    factory: Any, policy: Policy, tmp_path: Path, change: Any, reason: str
) -> None:
    folder = _pair(factory, tmp_path, [factory.Items("short_qa", "en")])
    relative = "samples/int8/short_qa.jsonl"
    lines = (folder / relative).read_text(encoding="utf-8").splitlines()
    (folder / relative).write_text("\n".join(change(lines)) + "\n", encoding="utf-8")
    factory.reseal(folder, relative)
    verdict = decide(folder, policy, [])
    assert verdict.outcome is Outcome.ERROR
    assert reason in verdict.classes[0].reason
    assert verdict.routing == {"short_qa.en": "bf16"}


def test_line_separators_inside_an_answer_are_no_line_breaks(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    items = factory.Items("short_qa", "zh")
    items.outputs["int8"] = {0: "星期三\u2028\u0085谢谢"}
    assert decide(_pair(factory, tmp_path, [items]), policy, []).outcome is Outcome.PASS


def test_no_items_is_an_error(factory: Any, policy: Policy, tmp_path: Path) -> None:
    folder = _pair(factory, tmp_path, [factory.Items("short_qa", "en")])
    path = folder / REPORT_NAME
    report = json.loads(path.read_text(encoding="utf-8"))
    report["classes"] = []
    path.write_text(json.dumps(report), encoding="utf-8")
    assert decide(folder, policy, []).outcome is Outcome.ERROR
    empty = _pair(factory, tmp_path / "other", [factory.Items("short_qa", "en")])
    for name in ("bf16", "int8"):
        (empty / f"samples/{name}/short_qa.jsonl").write_text("", encoding="utf-8")
        factory.reseal(empty, f"samples/{name}/short_qa.jsonl")
    assert decide(empty, policy, []).outcome is Outcome.ERROR


def test_findings_of_the_evaluation_are_errors(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    for at, candidate in enumerate(["int8", None]):
        found = Finding(level="error", candidate=candidate, code="not_finite", message="NaN seen")
        folder = _pair(
            factory, tmp_path / str(at), [factory.Items("short_qa", "en")], findings=[found]
        )
        verdict = decide(folder, policy, [])
        assert verdict.outcome is Outcome.ERROR
        assert "NaN seen (not_finite)" in verdict.classes[0].reason


def test_altered_weights_are_never_passed_but_a_measured_rejection_stays_one(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    candidates = [factory.info("bf16"), factory.info("int8", manifest_matches=False)]
    items = [factory.Items("short_qa", "en")]
    factory.write_evaluation(tmp_path / "same", items, candidates)
    assert decide(tmp_path / "same", policy, []).outcome is Outcome.ERROR
    broken = [factory.screen("int8", block_errors=[0.3])]
    factory.write_evaluation(tmp_path / "broken", items, candidates, screens=broken)
    assert decide(tmp_path / "broken", policy, []).outcome is Outcome.FAIL


def test_what_the_policy_names_must_be_there(factory: Any, policy: Policy, tmp_path: Path) -> None:
    folder = _pair(factory, tmp_path, [factory.Items("short_qa", "en")])
    typo = [{"rule": "non_inferior", "metric": "exact_mach", "margin": 0.08, "blocking": False}]
    rules = [*policy.kinds["short_qa"], *typo]
    verdict = decide(folder, Policy(name="typo", kinds={"short_qa": rules}), [])
    assert verdict.outcome is Outcome.ERROR
    assert "did you mean 'exact_match'?" in verdict.classes[0].reason
    absent = Policy(name="absent", kinds=policy.kinds, classes={"my_faq": rules})
    verdict = decide(folder, absent, [])
    assert verdict.outcome is Outcome.ERROR
    assert "'my_faq', which was not evaluated" in verdict.errors[0]


def test_the_entry_of_a_task_class_goes_before_its_suite_and_kind(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    items = factory.Items("short_qa", "zh")
    items.scores["int8"] = factory.worse("exact_match", range(0, 12, 2))
    wide = [{"rule": "non_inferior", "metric": "exact_match", "margin": 0.5}]
    chosen = Policy(
        name="own",
        kinds=policy.kinds,
        classes={"short_qa": policy.kinds["short_qa"], "short_qa.zh": wide},
    )
    folder = _pair(factory, tmp_path, [items, factory.Items("short_qa", "en")])
    verdict = decide(folder, chosen, [])
    assert _of(verdict, "short_qa.zh").outcome is Outcome.PASS
    assert decide(folder, policy, []).outcome is Outcome.INCONCLUSIVE


def test_require_counts_only_the_named(factory: Any, policy: Policy, tmp_path: Path) -> None:
    items = factory.Items("short_qa", "en")
    items.scores["int4"] = factory.worse("exact_match", range(60))
    names = ["bf16", "int8", "int4"]
    factory.write_evaluation(tmp_path, [items], [factory.info(name) for name in names])
    assert decide(tmp_path, policy, []).outcome is Outcome.FAIL
    verdict = decide(tmp_path, policy, ["int8"])
    assert verdict.outcome is Outcome.PASS
    assert verdict.required == ["int8"]
    assert decide(tmp_path, policy, ["int8", "int4"]).outcome is Outcome.FAIL
    with pytest.raises(UnknownNameError) as error:
        decide(tmp_path, policy, ["int9"])
    assert "did you mean 'int" in str(error.value.hint)
    with pytest.raises(InputError, match="baseline"):
        decide(tmp_path, policy, ["bf16"])


def test_routing_takes_the_cheapest_and_never_one_dearer_than_the_fallback(
    factory: Any, policy: Policy, tmp_path: Path
) -> None:
    candidates = [
        factory.info("bf16"),
        factory.info("fp32", weights_bytes=4_000_000),
        factory.info("int8"),
        factory.info("int4", weights_bytes=500_000),
    ]
    items = factory.Items("short_qa", "en")
    items.scores["int4"] = factory.worse("exact_match", range(60))
    factory.write_evaluation(tmp_path, [items], candidates)
    assert decide(tmp_path, policy, []).routing == {"short_qa.en": "int8"}
    named = policy.model_copy(update={"order": ["fp32"]})
    assert decide(tmp_path, named, []).routing == {"short_qa.en": "fp32"}
    assert cheapest_first(candidates, []) == ["int4", "int8", "bf16", "fp32"]
    with pytest.raises(UnknownNameError):
        decide(tmp_path, policy.model_copy(update={"fallback": "nf4"}), [])
    items.scores["int8"] = factory.worse("exact_match", range(60))
    factory.write_evaluation(tmp_path / "bad", [items], candidates)
    assert decide(tmp_path / "bad", policy, []).routing == {"short_qa.en": "bf16"}


def test_a_report_that_is_none_is_refused(factory: Any, policy: Policy, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        decide(tmp_path, policy, [])
    factory.write_evaluation(tmp_path, [factory.Items("short_qa", "en")], [factory.info("bf16")])
    with pytest.raises(InputError, match="baseline alone"):
        decide(tmp_path / REPORT_NAME, policy, [])


def test_worst_outcome_and_exit_codes() -> None:
    every = [Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.ERROR, Outcome.FAIL]
    for at, outcome in enumerate(every):
        assert worst(every[: at + 1]) is outcome
    assert worst([]) is Outcome.ERROR
    assert [EXIT_CODES[outcome] for outcome in every] == [0, 3, 2, 1]
