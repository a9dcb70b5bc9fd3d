"""The four tables: complete, and the only way in which a state changes."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import dtd.cluster
from dtd.cluster.transitions import (
    ENDED,
    GENERATION,
    GONE,
    JOB,
    MEMBER,
    WORKER,
    GenerationEvent,
    GenerationState,
    JobEvent,
    JobState,
    MemberEvent,
    MemberState,
    WorkerEvent,
    WorkerState,
)
from dtd.errors import ImpossibleTransition

CORE = Path(dtd.cluster.__file__).parent
TABLES = [
    (WORKER, WorkerState.IDLE, WorkerEvent, GONE),
    (GENERATION, GenerationState.NONE, GenerationEvent, {GenerationState.NONE}),
    (JOB, JobState.QUEUED, JobEvent, ENDED),
    (MEMBER, MemberState.IDLE, MemberEvent, {MemberState.FROZEN, MemberState.FINISHED}),
]
NAMES = ["worker", "generation", "job", "member"]
APPLIED_BY = {"move_worker", "move_generation", "move_job", "_move"}


def reached(table: Any, first: Any) -> set[Any]:
    """The states that somebody can get to who begins in this one."""
    found, new = {first}, [first]
    while new:
        state = new.pop()
        after = {then for (before, _), (then, _) in table if before is state} - found
        found |= after
        new += after
    return found


@pytest.mark.parametrize(("table", "first", "events", "last"), TABLES, ids=NAMES)
def test_every_state_can_be_reached_and_left(
    table: Any, first: Any, events: Any, last: Any
) -> None:
    assert reached(table, first) == set(type(first))
    for state in type(first):
        assert reached(table, state) & set(last), f"nothing leads from {state} to an end"


@pytest.mark.parametrize(("table", "first", "events", "last"), TABLES, ids=NAMES)
def test_every_event_is_of_use(table: Any, first: Any, events: Any, last: Any) -> None:
    assert {row.event for row in table.rows} == set(events)


def move_worker(driver: Any) -> None:
    driver.cluster.move_worker(driver.cluster.workers["a"], WorkerEvent.ASSIGNED)


def move_generation(driver: Any) -> None:
    driver.cluster.move_generation(GenerationEvent.ALL_RUN)


def move_job(driver: Any) -> None:
    driver.cluster.move_job(driver.cluster.job, JobEvent.ACTIVATED)
    driver.cluster.move_job(driver.cluster.job, JobEvent.RUNS)


@pytest.mark.parametrize("move", [move_worker, move_generation, move_job])
def test_the_invariants_do_not_hold_after_what_is_impossible(driver: Any, move: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    with pytest.raises(ImpossibleTransition):
        move(driver)
    assert driver.state("a") == "running"
    assert driver.cluster.run.phase is GenerationState.RUNNING
    with pytest.raises(AssertionError, match="cannot have"):
        driver.core.check_invariants()


def test_the_core_is_sound_once_it_has_begun_again(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    with pytest.raises(ImpossibleTransition):
        move_worker(driver)
    driver.core.begin_again(given_up=False)
    driver.core.check_invariants()


def assigned_in(node: ast.AST) -> set[str]:
    """Attributes that a statement assigns."""
    targets: list[ast.AST] = []
    if isinstance(node, ast.Assign):
        targets = [*node.targets]
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    return {
        one.attr for target in targets for one in ast.walk(target) if isinstance(one, ast.Attribute)
    }


def functions(path: Path) -> list[ast.FunctionDef]:
    """Those in which nothing but a table may change a state; in constructors it begins."""
    every = [one for one in ast.walk(ast.parse(path.read_text())) if type(one) is ast.FunctionDef]
    return [one for one in every if one.name not in APPLIED_BY | {"__init__"}]


def test_no_state_is_assigned_but_by_its_table() -> None:
    guilty = [
        f"{path.name}: {function.name}, line {node.lineno}"
        for path in CORE.rglob("*.py")
        for function in functions(path)
        for node in ast.walk(function)
        if assigned_in(node) & {"state", "generation_state"}
    ]
    assert guilty == []
