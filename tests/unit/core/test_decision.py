"""A generation is announced once it is written down, and not before."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.core.membership_events import CancelRequested, SaveJob
from dtd.wire import messages as m


@pytest.fixture
def held(desk: Any) -> Any:
    """A desk whose store has not answered yet; the decision is in `desk.saved`."""
    desk.submit()
    desk.writes = False
    desk.warm_up("a", "b")
    return desk


def announcing(desk: Any) -> SaveJob:
    return SaveJob(job=desk.books.job, announces=desk.books.generation)


def test_nobody_hears_of_what_is_not_written(held: Any) -> None:
    assert held.saved[-1].generation == 1
    assert held.told("a", m.Assign) == []
    assert held.core.explain() == "writing down generation 1"
    assert held.state("a") == "ready"
    held.written(announcing(held))
    assert [one.generation for one in held.told("a", m.Assign)] == [1]
    assert held.state("a") == "forming"


def test_what_cannot_be_written_is_tried_again(held: Any) -> None:
    held.written(announcing(held), failure="disk full")
    assert held.told("a", m.Assign) == []
    explained = held.core.explain()
    assert explained.startswith("generation 1 cannot be written down, and nobody hears of it")
    assert "disk full; make room on the coordinator's disk" in explained
    tries = len(held.saved)
    held.silence(0.75, "a", "b")
    assert len(held.saved) == tries
    held.silence(1.0, "a", "b")
    assert len(held.saved) == tries + 1
    assert held.core.next_deadline(held.now) is not None
    held.written(announcing(held))
    assert held.told("b", m.Assign)


@pytest.mark.parametrize("failure", ["", "disk full"])
def test_what_does_not_stand_any_more_is_decided_again(held: Any, failure: str) -> None:
    first = announcing(held)
    held.lost("b")
    held.writes = True
    held.written(first, failure=failure)
    held.silence(2.0, "a")
    (assign,) = held.told("a", m.Assign)
    assert assign.generation == 2
    assert [member.name for member in assign.roster] == ["a"]


def test_word_of_another_decision_changes_nothing(held: Any) -> None:
    old = SaveJob(job=held.books.job, announces=7)
    held.written(old)
    assert held.told("a", m.Assign) == []
    held.written(announcing(held))
    held.written(announcing(held))
    assert len(held.told("a", m.Assign)) == 1


def test_word_that_comes_after_the_job_changes_nothing(held: Any) -> None:
    decided = announcing(held)
    held.handle(CancelRequested(job="j-1"))
    assert held.books.job is None
    held.written(decided)
    assert held.told("a", m.Assign) == []
