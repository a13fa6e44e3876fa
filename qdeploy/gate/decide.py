"""From a policy and an evaluation to a verdict: validity first, then rules, then routing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.evals.results import CandidateInfo, ClassResult
from qdeploy.gate.evidence import Evaluation, read_evaluation
from qdeploy.gate.policy import BASELINE, Policy
from qdeploy.gate.rule import Evidence, NotMeasured, RuleSettings, judge_of
from qdeploy.gate.verdict import ClassVerdict, Outcome, RuleResult, Verdict, worst
from qdeploy.gate.wording import decision


def decide(report_path: Path, policy: Policy, require: Sequence[str] = ()) -> Verdict:
    """The verdict on the evaluation at `report_path` (a folder or its eval_report.json).

    With `require`, only these candidates count for the overall outcome, each in every task class;
    without, all but the baseline do. Raises InputError for an unreadable report, and for a
    required or fallback candidate that it does not hold.
    """
    evaluation = read_evaluation(report_path, allow_same_weights=policy.allow_same_weights)
    report = evaluation.report
    _check_names(evaluation, policy, require)
    errors = _errors(evaluation, policy)
    classes = [
        _judge(evaluation, policy, candidate, result)
        for result in report.classes
        for candidate in evaluation.others
    ]
    counted = [c for c in classes if not require or c.candidate in require]
    outcome = worst([c.outcome for c in counted] + [Outcome.ERROR for _ in errors])
    routing = {
        result.task_class: _route(evaluation, policy, result.task_class, classes)
        for result in report.classes
    }
    return Verdict(
        inputs={"eval_report": evaluation.digest, "policy": policy.digest()},
        policy=policy.name,
        baseline=report.baseline,
        required=list(dict.fromkeys(require)),
        classes=classes,
        routing=routing,
        outcome=outcome,
        decision=decision(classes, routing, report.baseline, errors),
        errors=errors,
    )


def cheapest_first(candidates: list[CandidateInfo], order: list[str]) -> list[str]:
    """Names in the policy's order; those it does not name follow by bytes of weights."""
    place = {name: at for at, name in enumerate(order)}
    ranked = sorted(candidates, key=lambda c: (place.get(c.name, len(order)), c.weights_bytes))
    return [candidate.name for candidate in ranked]


def _check_names(evaluation: Evaluation, policy: Policy, require: Sequence[str]) -> None:
    others = [candidate.name for candidate in evaluation.others]
    for name in require:
        if name == evaluation.report.baseline:
            raise InputError(f"--require {name}: it is the baseline and is compared with itself")
        if name not in others:
            raise UnknownNameError("candidate", name, others)
    if policy.fallback not in {BASELINE, evaluation.report.baseline, *others}:
        raise UnknownNameError("fallback candidate", policy.fallback, [BASELINE, *others])


def _errors(evaluation: Evaluation, policy: Policy) -> list[str]:
    """What is wrong with the comparison as a whole, in sentences."""
    report = evaluation.report
    errors = [f"baseline {report.baseline}: {p}" for p in evaluation.problems[report.baseline]]
    if not report.classes:
        errors.append("the report holds no task class (n = 0)")
    errors += [
        f"the policy names {key!r}, which was not evaluated: evaluate it or take it out"
        for key in policy.not_evaluated(report.classes)
    ]
    return errors


def _judge(
    evaluation: Evaluation, policy: Policy, candidate: CandidateInfo, result: ClassResult
) -> ClassVerdict:
    pairs, wrong = evaluation.pairs(candidate.name, result)
    wrong = [
        *evaluation.problems[evaluation.report.baseline],
        *evaluation.problems[candidate.name],
        *wrong,
    ]
    own = policy.rules_for(result)
    if not any(rule.blocking and rule.rule not in ("min_items", "informative") for rule in own):
        wrong.append(f"no rule: the policy asks for nothing in {result.task_class}")
    rules: list[RuleResult] = []
    if not wrong:
        evidence = Evidence(
            result=result,
            candidate=candidate.name,
            pairs=pairs,
            screen=evaluation.screen(candidate.name),
            alpha=policy.alpha,
            min_items=policy.min_items,
        )
        rules = [_apply(rule, evidence) for rule in [*policy.screen_rules(), *own]]
        if candidate.manifest_matches is False:
            rules.append(_altered(len(pairs)))
    outcome, reason = _summed_up(rules, wrong)
    return ClassVerdict(
        task_class=result.task_class,
        candidate=candidate.name,
        outcome=outcome,
        reason=reason,
        rules=rules,
    )


def _apply(rule: RuleSettings, evidence: Evidence) -> RuleResult:
    try:
        return judge_of(rule)(rule, evidence)
    except NotMeasured as error:
        return RuleResult(
            rule=rule.rule,
            metric=str(getattr(rule, "metric", rule.rule)),
            outcome=Outcome.ERROR,
            # What a policy names must be there, also where it only informs.
            blocking=True,
            measured=None,
            limit=0.0,
            n=0,
            reason=str(error),
        )


def _altered(n: int) -> RuleResult:
    return RuleResult(
        rule="manifest",
        metric="weights_digest",
        outcome=Outcome.ERROR,
        blocking=True,
        measured=None,
        limit=0.0,
        n=n,
        reason="the weights are not those that its quant_manifest.json describes",
    )


def _summed_up(rules: list[RuleResult], wrong: list[str]) -> tuple[Outcome, str]:
    """The outcome of a task class and the reason: that of the first rule with this outcome."""
    if wrong:
        return Outcome.ERROR, "; ".join(wrong)
    blocking = [rule for rule in rules if rule.blocking]
    outcome = worst(rule.outcome for rule in blocking)
    reasons = [rule.reason for rule in blocking if rule.outcome is outcome]
    if outcome is Outcome.PASS:
        reasons = [rule.reason for rule in blocking if rule.rule == "non_inferior"] or reasons
    return outcome, reasons[0]


def _route(
    evaluation: Evaluation, policy: Policy, task_class: str, classes: list[ClassVerdict]
) -> str:
    """The cheapest candidate that passes in `task_class`, at most as dear as the fallback."""
    baseline = evaluation.report.baseline
    fallback = baseline if policy.fallback == BASELINE else policy.fallback
    passing = {
        c.candidate for c in classes if c.task_class == task_class and c.outcome is Outcome.PASS
    }
    for name in cheapest_first(evaluation.report.candidates, policy.order):
        if name in passing:
            return name
        if name == fallback:
            break
    return fallback
