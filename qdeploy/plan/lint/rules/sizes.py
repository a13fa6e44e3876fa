"""Sizes that are no sizes."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.core.errors import InputError
from qdeploy.plan.deepspeed import SIZES, element_count, given_size
from qdeploy.plan.lint.case import Case, Finding, size_path


def check(case: Case) -> Iterator[Finding]:
    """Sizes that DeepSpeed refuses: text, negative or broken numbers."""
    for name in SIZES:
        try:
            element_count(name, given_size(case.zero, name), case.job.shape.hidden_size)
        except InputError as error:
            yield Finding(
                severity="error", key=size_path(name), message=error.message, advice=error.hint
            )
