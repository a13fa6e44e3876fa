"""The decision in words: who may serve what, what was rejected, and what is not known yet."""

from __future__ import annotations

from qdeploy.gate.verdict import ClassVerdict, Outcome

_NEAREST_TO_A_PASS = (Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.FAIL, Outcome.ERROR)


def decision(
    classes: list[ClassVerdict], routing: dict[str, str], baseline: str, errors: list[str]
) -> str:
    """Who serves which task classes, why the baseline keeps the others, and who was rejected."""
    parts: dict[str, list[str]] = {}
    spoken: set[tuple[str, str]] = set()
    for task_class, candidate in routing.items():
        key = candidate
        if candidate == baseline:
            nearest = _nearest([c for c in classes if c.task_class == task_class])
            key = f"{baseline}\n ({_because(nearest)})" if nearest else baseline
            spoken |= {(nearest.candidate, task_class)} if nearest else set()
        parts.setdefault(key, []).append(task_class)
    ordered = sorted(parts.items(), key=lambda part: part[0].split("\n")[0] == baseline)
    text = "; ".join(_part(key, names) for key, names in ordered) or "nothing to decide"
    rejected = _rejected([c for c in classes if (c.candidate, c.task_class) not in spoken])
    sentences = [text, *([f"Rejected: {rejected}"] if rejected else [])]
    if errors:
        sentences.append(f"Not a valid comparison: {'; '.join(errors)}")
    return ". ".join(sentences)


def _part(key: str, task_classes: list[str]) -> str:
    name, _, why = key.partition("\n")
    return f"{name} for {', '.join(task_classes)}{why}"


def _nearest(here: list[ClassVerdict]) -> ClassVerdict | None:
    """The verdict that came nearest to a pass: it says why the baseline keeps the class."""
    ranked = sorted(here, key=lambda judged: _NEAREST_TO_A_PASS.index(judged.outcome))
    return ranked[0] if ranked else None


def _because(judged: ClassVerdict) -> str:
    name = judged.candidate
    if judged.outcome is Outcome.PASS:
        return f"{name} passes too but is not cheaper"
    if judged.outcome is Outcome.ERROR:
        return f"{name} could not be judged: {judged.reason}"
    if judged.outcome is Outcome.FAIL:
        return f"{name} is {_fault(judged)}"
    open_rules = [r for r in judged.rules if r.outcome is Outcome.INCONCLUSIVE and r.blocking]
    for rule in open_rules:
        if rule.rule == "informative" and (rule.measured or 0.0) > rule.limit:
            return "not known yet: too few prompts to show that the baseline can do this task"
        if rule.rule == "informative":
            return "not known: the baseline itself cannot do this task"
    counts = [rule.needed for rule in open_rules]
    if None in counts:
        return f"not known: {name} is close to the margin, more prompts of this kind may not help"
    more = max((count for count in counts if count is not None), default=1)
    return f"not known yet: about {more} more prompts are needed"


def _fault(judged: ClassVerdict) -> str:
    failed = [r for r in judged.rules if r.outcome is Outcome.FAIL and r.blocking]
    broken = any(rule.rule == "screen" for rule in failed)
    metrics = ", ".join(dict.fromkeys(rule.metric for rule in failed))
    return f"{'broken' if broken else 'worse'}: {metrics}"


def _rejected(classes: list[ClassVerdict]) -> str:
    """'int4 for short_qa.en, short_qa.zh (worse: char_f1)'."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for judged in classes:
        if judged.outcome is Outcome.FAIL:
            grouped.setdefault((judged.candidate, _fault(judged)), []).append(judged.task_class)
    return "; ".join(
        f"{name} for {', '.join(names)} ({fault})" for (name, fault), names in grouped.items()
    )
