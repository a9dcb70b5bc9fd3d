"""A job goes on from its workers' parameters, with a fresh optimizer, if its operator asks."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.core.engine.shards import NOTHING, WHOLE, Division
from dtd.core.membership import coverage
from dtd.core.membership.events import CancelRequested, JobSaved, ResumeRequested
from dtd.core.membership.records import Reset
from dtd.errors import RequestRefused
from dtd.wire import messages as m

SERVED = {"name": "sharded", "owners": "servers", "mirrors": 1, "stage": 1}
ROSTER = ("a", "b", "ps-1")


def warm_up(desk: Any, *names: str, **more: Any) -> None:
    for name in names:
        desk.register(name, serves=name.startswith("ps"), **more)
    for name in names:
        desk.warmed(name)


def running(desk: Any, *, min_workers: int = 1, **strategy: Any) -> int:
    """The job has committed 5 steps with two workers and one server."""
    desk.submit(strategy={**SERVED, **strategy}, min_workers=min_workers)
    warm_up(desk, *ROSTER)
    number = int(desk.all_run(*ROSTER))
    desk.commit(5)
    return number


def froze(desk: Any, name: str, number: int, step: int = 5, **more: Any) -> None:
    """A worker has left, with no shards and, unless told otherwise, all parameters."""
    part = more.pop("part", NOTHING)
    held = m.Held(
        job="j-1",
        generation=more.pop("held_generation", number),
        step=step,
        digest="",
        where=more.pop("where", "memory"),
        part=() if part.is_whole else tuple(part.to_wire()),
        parameters=more.pop("parameters", True),
    )
    more = {"prepared": (held.generation, step), **more}
    desk.froze(name, generation=number, step=step, held=(held,), **more)


def waiting(desk: Any, **strategy: Any) -> int:
    """The only server is lost after step 5, and the workers have its parameters."""
    number = running(desk, **strategy)
    desk.lost("ps-1")
    froze(desk, "a", number)
    froze(desk, "b", number)
    return number


def ask(desk: Any) -> None:
    desk.handle(ResumeRequested(job="j-1", without_optimizer=True))


def start(desk: Any, name: str = "a") -> tuple[int, int, int]:
    """What a worker was last told to start from, and what that is made of."""
    assign = desk.told(name, m.Assign)[-1]
    return assign.held_generation, assign.held_step, assign.reset_of


def told(desk: Any, name: str = "a") -> int:
    """How many generations a worker was told of."""
    return len(desk.told(name, m.Assign))


# --- asked -------------------------------------------------------------------------------------


def test_the_job_goes_on_from_the_parameters_as_soon_as_a_server_is_ready(desk: Any) -> None:
    number = waiting(desk)
    ask(desk)
    assert told(desk) == 1, "there is no server yet"
    warm_up(desk, "ps-2")
    assign = desk.told("a", m.Assign)[-1]
    assert start(desk) == (number + 1, 5, number), "a state of its own"
    assert assign.generation == number + 2, "no generation of workers has its number"
    assert [(one.name, one.holds) for one in assign.roster] == [
        ("a", True),
        ("b", True),
        ("ps-2", False),
    ]


def test_that_is_told_and_counted_once(desk: Any) -> None:
    waiting(desk)
    ask(desk)
    warm_up(desk, "ps-2")
    (said,) = desk.told_of("optimizer_reset")
    assert said.step == 5
    assert (desk.cluster.job.optimizer_resets, desk.cluster.job.steps_lost) == (1, 0)
    assert not desk.told_of("steps_lost")
    desk.all_run("a", "b", "ps-2")
    assert desk.cluster.run.roster == ["a", "b", "ps-2"]
    assert desk.cluster.workers["a"].holdings.makes is None
    number = desk.cluster.run.generation
    for name in ("a", "b", "ps-2"):
        desk.saved_checkpoint(name, generation=number, step=9)
    desk.commit(10_000)
    for name in ("a", "b", "ps-2"):
        desk.finished(name, generation=number, step=10_000)
    assert desk.ended[-1].result["optimizer_resets"] == 1


def test_a_job_whose_optimizer_was_never_reset_says_nothing_of_it(desk: Any) -> None:
    waiting(desk)
    desk.handle(CancelRequested(job="j-1"))
    assert "optimizer_resets" not in desk.ended[-1].result


def test_the_remedy_is_named_while_the_job_waits_for_its_server(desk: Any) -> None:
    waiting(desk)
    said = desk.core.explain()
    assert "no parameter server is ready" in said
    assert (
        "; `dtdctl resume j-1 --without-optimizer` goes on from the parameters of step 5, held by"
        " a, b, with a fresh optimizer"
    ) in said
    ask(desk)
    assert desk.core.explain().endswith(
        "; it goes on from the parameters of step 5, with a fresh optimizer"
    )
    assert "without the state of its optimizer" in desk.told_of("job_resumed")[-1].message


def test_it_is_named_while_the_job_waits_for_the_server_to_return(desk: Any) -> None:
    waiting(desk)
    warm_up(desk, "ps-2")
    said = desk.core.explain()
    assert "waiting for ps-1" in said
    assert "--without-optimizer" in said
    ask(desk)
    assert start(desk)[1] == 5


def test_the_wish_is_written_down(desk: Any) -> None:
    number = waiting(desk)
    ask(desk)
    assert desk.saved[-1].reset == (number + 1, number, 5)
    ask(desk)
    assert desk.cluster.job.reset == (number + 1, number, 5), "asking again changes nothing"


def test_the_newest_parameters_count_and_lost_steps_are_counted(desk: Any) -> None:
    """One worker has committed a step that another one has not, and lacks its parameters."""
    number = running(desk)
    desk.commit(6)
    desk.lost("ps-1")
    froze(desk, "a", number, 6, parameters=False)
    froze(desk, "b", number, 5, prepared=(number, 6))
    ask(desk)
    warm_up(desk, "ps-2")
    assert start(desk) == (number + 1, 5, number)
    assert [one.holds for one in desk.told("a", m.Assign)[-1].roster] == [False, True, False]
    assert desk.cluster.job.steps_lost == 1
    known = [tuple(one) for one in desk.cluster.job.branches]
    assert known == [(number, 5, number + 1)], "step 6 is on a branch that is left"


# --- refused -----------------------------------------------------------------------------------


def refusal(desk: Any) -> str:
    with pytest.raises(RequestRefused) as refused:
        ask(desk)
    assert not desk.cluster.job.reset
    assert not desk.cluster.waiting.resumed
    assert "--without-optimizer" not in desk.core.explain()
    return refused.value.message


def test_it_is_refused_if_parameters_are_divided(desk: Any) -> None:
    waiting(desk, stage=3)
    assert "divided as well (strategy.stage = 3)" in refusal(desk)


def test_it_is_refused_if_no_worker_has_all_parameters(desk: Any) -> None:
    number = running(desk)
    desk.lost("ps-1")
    froze(desk, "a", number, parameters=False)
    froze(desk, "b", number, parameters=False)
    assert "no worker present has all parameters of a step" in refusal(desk)


def test_what_a_worker_says_of_its_disk_are_no_parameters(desk: Any) -> None:
    number = running(desk)
    desk.lost("ps-1")
    froze(desk, "a", number, where="none")
    froze(desk, "b", number, where="checkpoint")
    assert "no worker present has all parameters" in refusal(desk)


def test_it_is_refused_if_the_state_is_there(desk: Any) -> None:
    number = running(desk, min_workers=2)
    desk.lost("b")
    froze(desk, "a", number)
    froze(desk, "ps-1", number, part=WHOLE, parameters=False)
    assert "the state of step 5 is there, with the optimizer's" in refusal(desk)


def test_it_is_refused_if_the_state_is_not_sharded(desk: Any) -> None:
    desk.submit(min_workers=2)
    desk.run_generation("a", "b")
    desk.lost("b")
    desk.froze("a", generation=1, step=0)
    assert "holds all of it" in refusal(desk)


def test_it_is_refused_while_a_newer_generation_may_exist(desk: Any) -> None:
    waiting(desk)
    desk.cluster.epoch += 1
    assert "newer generation" in refusal(desk)


def test_it_is_refused_while_the_job_trains(desk: Any) -> None:
    running(desk)
    with pytest.raises(RequestRefused, match="does not wait"):
        ask(desk)


# --- what comes back ---------------------------------------------------------------------------


def back(desk: Any, name: str, number: int, **more: Any) -> None:
    """A member of an earlier generation connects again, as the same process."""
    serves = name.startswith("ps")
    more = {"roster_id": desk.told(name, m.Assign)[0].roster_id, "phase": "frozen", **more}
    desk.register(name, job="j-1", generation=number, serves=serves, **more)


def test_the_wish_is_void_if_the_state_comes_back_before_it_is_met(desk: Any) -> None:
    number = waiting(desk)
    ask(desk)
    back(desk, "ps-1", number)
    froze(desk, "ps-1", number, part=WHOLE, parameters=False)
    assert start(desk) == (number, 5, 0)
    assert not desk.cluster.job.reset
    assert not desk.told_of("optimizer_reset")


def test_a_decision_is_withdrawn_if_the_state_comes_back_before_it_is_announced(
    desk: Any,
) -> None:
    number = waiting(desk)
    ask(desk)
    desk.writes = False
    warm_up(desk, "ps-2")
    decided = desk.saved[-1]
    assert (decided.start_generation, decided.start_step) == (number + 1, 5)
    assert decided.optimizer_resets == 1, "written down with the decision"
    generation = decided.generation
    back(desk, "ps-1", number)
    froze(desk, "ps-1", number, part=WHOLE, parameters=False)
    desk.writes = True
    desk.handle(JobSaved(job="j-1", generation=generation, failure=""))
    assert start(desk) == (number, 5, 0)
    assert desk.cluster.job.optimizer_resets == 0
    assert not desk.told_of("optimizer_reset")


def test_an_old_server_that_returns_later_adds_nothing(desk: Any) -> None:
    """It holds a newer step of another branch, which no part of the present state is taken from."""
    number = waiting(desk)
    ask(desk)
    warm_up(desk, "ps-2")
    again = desk.all_run("a", "b", "ps-2")
    desk.commit(5)
    back(desk, "ps-1", number)
    froze(desk, "ps-1", number, 6, part=WHOLE, parameters=False)
    for name in ("a", "b"):
        froze(desk, name, again, 5, held_generation=number + 1)
    froze(desk, "ps-2", again, 5, held_generation=number + 1, part=WHOLE, parameters=False)
    assign = desk.told("a", m.Assign)[-1]
    assert start(desk)[:2] == (number + 1, 5)
    holders = {one.name for one in assign.roster if one.holds}
    assert "ps-1" in {one.name for one in assign.roster} - holders


def test_the_job_returns_to_the_old_state_if_the_new_one_is_lost_as_well(desk: Any) -> None:
    number = waiting(desk)
    ask(desk)
    warm_up(desk, "ps-2")
    again = desk.all_run("a", "b", "ps-2")
    desk.commit(8)
    desk.lost("ps-2")
    for name in ("a", "b"):
        froze(desk, name, again, 8, parameters=False)
    back(desk, "ps-1", number)
    froze(desk, "ps-1", number, 6, part=WHOLE, parameters=False)
    desk.handle(ResumeRequested(job="j-1"))
    assert start(desk) == (number, 6, 0)
    assert desk.cluster.job.steps_lost == 2
    assert not desk.cluster.job.reset


# --- a generation that never begins ------------------------------------------------------------


def formed(desk: Any) -> tuple[int, int]:
    """A generation is announced that starts from the parameters; its server is lost again."""
    number = waiting(desk)
    ask(desk)
    warm_up(desk, "ps-2")
    again = int(desk.cluster.run.generation)
    assert told(desk) == 2
    desk.lost("ps-2")
    return number, again


def test_the_decision_stands_though_nobody_has_carried_it_out(desk: Any) -> None:
    number, again = formed(desk)
    for name in ("a", "b"):
        froze(desk, name, again, held_generation=number)
    assert "--without-optimizer" not in desk.core.explain()
    warm_up(desk, "ps-3")
    assert start(desk) == (number + 1, 5, number)
    assert told(desk) == 3
    assert desk.cluster.job.optimizer_resets == 1, "it is the same one"
    assert coverage.part_at(desk.cluster.workers["a"], (number + 1, 5)).is_whole


def test_who_has_carried_it_out_has_all_of_the_state(desk: Any) -> None:
    number, again = formed(desk)
    froze(desk, "a", again, held_generation=number + 1, part=WHOLE, parameters=False)
    froze(desk, "b", again, held_generation=number)
    assert not desk.told_of("report_contradicted")
    warm_up(desk, "ps-3")
    assert start(desk) == (number + 1, 5, number)
    assert told(desk) == 3
    assert [one.holds for one in desk.told("a", m.Assign)[-1].roster] == [True, True, False]


def test_a_member_that_was_away_can_still_carry_it_out(desk: Any) -> None:
    number, again = formed(desk)
    froze(desk, "a", again, held_generation=number)
    desk.lost("b")
    desk.lost("a")
    back(desk, "a", number)
    froze(desk, "a", number)
    warm_up(desk, "ps-3")
    assert told(desk) == 3, "nobody is waited for"
    assert start(desk) == (number + 1, 5, number)


def test_the_number_of_a_void_wish_is_used_up(desk: Any) -> None:
    number = waiting(desk)
    ask(desk)
    back(desk, "ps-1", number)
    froze(desk, "ps-1", number, part=WHOLE, parameters=False)
    assert desk.told("a", m.Assign)[-1].generation == number + 2


def test_a_job_that_ends_meanwhile_is_saved_as_it_is(desk: Any) -> None:
    waiting(desk)
    ask(desk)
    desk.handle(CancelRequested(job="j-1"))
    assert not desk.told("a", m.Save)
    assert (desk.ended[-1].state.value, desk.ended[-1].reset) == ("cancelled", ())


def test_a_wish_that_a_restored_store_remembers_is_void(desk: Any) -> None:
    """Its number may be one that was given to a generation since."""
    waiting(desk)
    ask(desk)
    desk.cluster.epoch += 1
    with pytest.raises(RequestRefused, match="newer generation"):
        ask(desk)
    desk.handle(ResumeRequested(job="j-1"))
    assert not desk.cluster.job.reset


def test_a_decision_that_a_restored_store_remembers_stands(desk: Any) -> None:
    number, again = formed(desk)
    for name in ("a", "b"):
        froze(desk, name, again, held_generation=number)
    desk.cluster.epoch += 1
    desk.handle(ResumeRequested(job="j-1"))
    warm_up(desk, "ps-3")
    assert told(desk) == 3
    assert start(desk) == (number + 1, 5, number)


def test_a_newer_generation_than_the_store_knows_ends_the_wish(desk: Any) -> None:
    number = waiting(desk)
    ask(desk)
    member = m.Member(name="a", incarnation=1, host="h", port=1, holds=True)
    desk.lost("a")
    desk.register(
        "a",
        job="j-1",
        generation=number + 7,
        roster_id=9,
        phase="running",
        roster=(member,),
        held_generation=number + 5,
        held_step=7,
    )
    assert not desk.cluster.job.reset


# --- workers that own the state ----------------------------------------------------------------


def test_owners_without_mirrors_go_on_from_parameters_too(desk: Any) -> None:
    desk.submit(strategy={"name": "sharded", "mirrors": 0, "stage": 1}, min_workers=2)
    warm_up(desk, "a", "b", "c")
    number = desk.all_run("a", "b", "c")
    desk.commit(5)
    desk.lost("b")
    division = Division(world_size=3, mirrors=0)
    for rank, name in ((0, "a"), (2, "c")):
        froze(desk, name, number, part=division.shards(rank))
    assert "held by a, c" in desk.core.explain()
    ask(desk)
    assert start(desk) == (number + 1, 5, number)
    assert all(one.holds for one in desk.told("a", m.Assign)[-1].roster)


def test_a_reset_of_a_record_is_read(desk: Any) -> None:
    job = desk.submit()
    assert Reset.of(job) is None
    job.reset = [7, 3, 5]  # as JSON has it
    reset = Reset.of(job)
    assert reset is not None
    assert (reset.key, reset.made_of, reset.is_start(job)) == ((7, 5), (3, 5), False)
    job.start_generation, job.start_step = 7, 5
    assert reset.is_start(job)
