"""A store that has gone back does not know which generation was the newest."""

from __future__ import annotations

from typing import Any

from dtd.cluster.events import ResumeRequested, Submitted
from dtd.cluster.records import Job
from dtd.wire import messages as m

ELASTIC = {"min_workers": 1, "max_workers": 64, "settle_s": 0.0, "warmup_timeout_s": 120.0}


def restored(make_desk: Any, **more: Any) -> Any:
    """A coordinator whose store has the job as it was backed up: generation 1 of a and b."""
    driver = make_desk(last_generation=100)
    values: dict[str, Any] = {
        "generation": 1,
        "roster": ("a", "b"),
        "roster_id": 11,
        "announced": True,
        "fenced": False,
        "in_doubt": True,
        "forgetful": True,
        **more,
    }
    spec = {"job": {"name": "j"}, "elastic": ELASTIC}
    driver.handle(Submitted(job=Job(id="j-1", spec=spec, **values)))
    return driver


def member(name: str) -> m.Member:
    return m.Member(name=name, incarnation=1, host="h", port=1, holds=True)


def comes(driver: Any, name: str, generation: int, *roster: str, phase: str = "running") -> None:
    driver.register(
        name,
        job="j-1",
        generation=generation,
        roster_id=10 + generation,
        phase=phase,
        roster=tuple(map(member, roster)),
        held_generation=1,
        held_step=4,
    )


def test_nothing_is_taken_up_and_nothing_formed_until_it_is_certain(make_desk: Any) -> None:
    driver = restored(make_desk)
    assert driver.cluster.run.roster == []
    driver.warm_up("a", "b")
    driver.silence(90.0, "a", "b")
    assert driver.told("a", m.Assign) == []
    explained = driver.core.explain()
    assert (
        "waiting for a, b to say that generation 1, the newest known, still runs or has"
        in explained
    )
    assert "`dtdctl resume j-1` if nobody else trains it" in explained


def test_the_highest_generation_that_is_reported_counts_and_trains_on(make_desk: Any) -> None:
    driver = restored(make_desk)
    comes(driver, "a", 3, "a", "c")
    assert (driver.cluster.job.roster, driver.cluster.job.start_step) == (("a", "c"), 4)
    assert driver.cluster.job.step == 4  # or the job might end as of fewer steps than it has
    assert driver.told("a", m.Freeze) == []
    driver.silence(20.0, "a")
    assert "waiting for c to say that generation 3" in driver.core.explain()
    comes(driver, "b", 1, "a", "b")  # of an older one
    assert driver.cluster.job.generation == 3
    comes(driver, "c", 3, "a", "c", phase="forming")
    assert all(driver.told(name, m.Freeze) for name in "abc")
    for name in "ac":
        driver.froze(name, generation=3, step=9, held_generation=3)
    driver.froze("b", generation=1, step=4, held_generation=1)
    (assign,) = driver.told("a", m.Assign)
    assert (assign.held_generation, assign.held_step) == (3, 9)
    assert assign.generation == 101
    assert not driver.cluster.job.in_doubt


def test_one_that_had_left_proves_nothing_and_the_operator_decides(make_desk: Any) -> None:
    """A later generation may have been formed without it, and may run on out of our hearing."""
    driver = restored(make_desk)
    comes(driver, "a", 3, "a", "c")
    comes(driver, "c", 3, "a", "c", phase="frozen")
    driver.froze("c", generation=3, step=9, held_generation=3)
    driver.silence(90.0, "a", "c")
    assert driver.told("a", m.Freeze) == driver.told("c", m.Assign) == []
    assert "waiting for c to say" in driver.core.explain()
    driver.handle(ResumeRequested(job="j-1"))
    driver.froze("a", generation=3, step=9, held_generation=3)
    assert driver.told("a", m.Assign)[0].held_step == 9


def test_a_generation_older_than_another_jobs_is_not_taken_up(make_desk: Any) -> None:
    driver = restored(make_desk)
    driver.cluster.run.generation = 4
    comes(driver, "a", 3, "a")
    assert driver.told("a", m.Freeze)


def test_a_store_that_went_back_without_a_word_is_found_out(driver: Any) -> None:
    job = driver.submit()
    driver.run_generation("a")
    driver.froze("a", generation=1, step=2)
    driver.lost("a")
    comes(driver, "a", 5, "a", "b")
    (incident,) = driver.told_of("store_went_back")
    assert "a knows generation 5" in incident.message
    assert (job.in_doubt, job.generation, job.roster) == (True, 5, ("a", "b"))
    driver.silence(90.0, "a")
    comes(driver, "b", 5, "a", "b")
    assert [driver.state(name) for name in "ab"] == ["running", "running"]
    for name in "ab":
        driver.froze(name, generation=5, step=9, held_generation=5)
    assert driver.told("a", m.Assign)[-1].generation == 6
