"""No message of the engine names a method of tasks to somebody who has written a loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import dtd
from dtd.own_loop.words import in_words_of_loops

METHODS = re.compile(
    r"build_(model|optimizers?|schedule)\(|(train|eval)_dataset\(|loss\(\)|of the task"
)
OF_TASKS_ALONE = re.compile(
    r"a task has build_model|and an eval_dataset\(\), and no metrics|has build_optimizer\(\) and"
)
"""Begins messages about a task's methods that no loop can cause."""


def texts() -> Iterator[str]:
    """The texts of all errors and warnings of training and strategies, with {} for values."""
    for folder in ("train", "strategy"):
        for path in (Path(dtd.__file__).parent / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and raises_or_warns(node.func):
                    yield from map(text, [*node.args, *(one.value for one in node.keywords)])


def raises_or_warns(called: ast.expr) -> bool:
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in ("TaskError", "warn", "warning")


def text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text, node.values))
    return "{}"


def test_they_are_replaced_by_words_for_a_loop() -> None:
    found = [one for one in texts() if METHODS.search(one) and not OF_TASKS_ALONE.search(one)]
    assert len(found) > 20
    assert [one for one in map(in_words_of_loops, found) if METHODS.search(one)] == []
