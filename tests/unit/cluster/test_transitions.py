"""The four tables: complete, and the only way in which a state changes."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import dtd.cluster
from dtd.cluster import member
from dtd.cluster.transitions import (
    ENDED,
    GENERATION,
    GONE,
    JOB,
    MEMBER,
    WORKER,
    GenerationAction,
    GenerationEvent,
    GenerationState,
    JobEvent,
    JobState,
    MemberAction,
    MemberEvent,
    MemberState,
    Row,
    Table,
    WorkerAction,
    WorkerEvent,
    WorkerState,
)
from dtd.errors import ImpossibleTransition
from dtd.wire import messages as m

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


def test_what_a_table_does_not_have_is_impossible() -> None:
    with pytest.raises(ImpossibleTransition, match="a worker that is idle cannot have: assigned"):
        WORKER.take(WorkerState.IDLE, WorkerEvent.ASSIGNED)


def test_two_rows_for_one_event_in_one_state_are_refused() -> None:
    rows = [
        Row(WorkerEvent.LOST, frozenset({WorkerState.IDLE}), then, WorkerAction.NONE)
        for then in (WorkerState.LOST, WorkerState.RELEASED)
    ]
    with pytest.raises(AssertionError, match="two rows of worker"):
        Table("worker", rows)


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


def test_a_member_is_not_sound_after_what_is_impossible() -> None:
    register = m.Register(
        name="a",
        incarnation=1,
        pid=1,
        host="h",
        device="cpu",
        data_host="h",
        data_port=1,
        version="0",
    )
    core = member.Member(register)
    finished = m.Finished(job="j", generation=1, step=1, held_generation=1, digest="", result={})
    with pytest.raises(ImpossibleTransition, match="a member that is idle cannot have"):
        core.handle(finished)
    assert core.state is MemberState.IDLE
    with pytest.raises(AssertionError, match="a member that is idle"):
        core.check_invariants()


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


def test_every_action_is_performed_by_some_row() -> None:
    assert {row.action for row in WORKER.rows} == set(WorkerAction)
    assert {row.action for row in GENERATION.rows} == set(GenerationAction)
    assert {row.action for row in MEMBER.rows} == set(MemberAction)
