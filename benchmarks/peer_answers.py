"""Runs inside a peer's own environment: questions as JSON on stdin, answers as JSON on stdout.

    PEER_PYTHON -I peer_answers.py peers/NAME.py < questions.json > answers.json

A peer's file is loaded by path under another name, because it is called like the package that it
imports. It raises ValueError for what its tool cannot express; that is an answer.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from types import ModuleType
from typing import Any


def load_peer(path: str) -> ModuleType:
    """The peer's file as a module; its tool is imported only when it estimates."""
    spec = importlib.util.spec_from_file_location("peer", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _answer(peer: ModuleType, question: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"bytes": int(peer.estimate(question))}
    except ValueError as error:
        first = str(error).strip().splitlines()[0].split(". ")[0]
        return {"refusal": first}


def main() -> None:
    """Answer every question of stdin, in order."""
    peer = load_peer(sys.argv[1])
    with contextlib.redirect_stdout(sys.stderr):  # what a tool prints is not an answer
        answers = [_answer(peer, question) for question in json.load(sys.stdin)]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
