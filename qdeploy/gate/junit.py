"""`junit.xml`: one test case per task class, candidate and rule, for any CI system.

A blocking FAIL is a failure, INCONCLUSIVE a failure of type 'inconclusive', ERROR an error; what
does not block is skipped with its message. No prompt and no output gets into the file.
"""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from qdeploy.gate.verdict import Outcome, RuleResult, Verdict

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(verdict: Verdict) -> str:
    """The verdict as JUnit XML."""
    root = Element("testsuites", name="qdeploy gate")
    suites: dict[str, Element] = {}

    def suite(name: str) -> Element:
        if name not in suites:
            suites[name] = SubElement(root, "testsuite", name=_clean(name))
        return suites[name]

    for error in verdict.errors:
        case = SubElement(suite("comparison"), "testcase", classname="comparison", name="valid")
        _add(case, "error", "ERROR", error)
    for judged in verdict.classes:
        place = {"classname": _clean(f"{judged.task_class}.{judged.candidate}")}
        parent = suite(judged.candidate)
        if not judged.rules:
            case = SubElement(parent, "testcase", place, name="valid")
            _add(case, "error", "ERROR", judged.reason)
        for rule in judged.rules:
            name = _clean(f"{rule.rule} {rule.metric}")
            _outcome(SubElement(parent, "testcase", place, name=name), rule)
    for element in suites.values():
        _count(element)
    _count(root)
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _outcome(case: Element, rule: RuleResult) -> None:
    if rule.outcome is Outcome.PASS:
        return
    if not rule.blocking:
        _add(case, "skipped", None, f"does not block: {rule.outcome.value}: {rule.reason}")
    elif rule.outcome is Outcome.ERROR:
        _add(case, "error", "ERROR", rule.reason)
    elif rule.outcome is Outcome.INCONCLUSIVE:
        _add(case, "failure", "inconclusive", rule.reason)
    else:
        _add(case, "failure", "rejected", rule.reason)


def _add(case: Element, tag: str, kind: str | None, message: str) -> None:
    element = SubElement(case, tag, message=_clean(message))
    if kind is not None:
        element.set("type", kind)


def _count(element: Element) -> None:
    counted = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
    for attribute, tag in counted.items():
        element.set(attribute, str(len(element.findall(f".//{tag}"))))


def _clean(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
