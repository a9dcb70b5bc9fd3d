from dataclasses import replace
from typing import Any

import pytest

from dtd.cluster import member
from dtd.cluster.member import Member
from dtd.cluster.transitions import MemberState
from dtd.wire import messages as m

REGISTER = m.Register(
    name="w",
    incarnation=7,
    pid=1,
    host="h",
    device="cpu",
    data_host="h",
    data_port=1,
    version="0",
)
REGISTERED = m.Registered(heartbeat_interval_s=0.5, heartbeat_timeout_s=5.0)
WARMED = m.Warmed(
    job="j",
    dataset_rows=1,
    dataset_fingerprint="",
    plan_digest="",
    numerics_fingerprint="",
    parameters=1,
    steps_total=9,
    held=(),
)
FINISHED = m.Finished(job="j", generation=4, held_generation=4, step=9, digest="x", result={})
FAILED = m.Failed(job="j", reason="boom", traceback="")
PREPARE = m.Prepare(job="j", spec={})


ROSTER = (m.Member(name="w", incarnation=7, host="h", port=1, holds=True),)


def assign(generation: int = 4) -> m.Assign:
    return m.Assign(
        job="j",
        generation=generation,
        roster_id=11,
        rank=0,
        roster=ROSTER,
        held_generation=3,
        held_step=5,
    )


def freeze(generation: int = 4, **more: bool) -> m.Freeze:
    flags = {"at_boundary": False, "stop": False, **more}
    return m.Freeze(generation=generation, reason="why", **flags)


def release(state: str = "done") -> m.Release:
    return m.Release(job="j", state=state, reason="because")


def froze(generation: int = 4, step: int = 6, evidence: str = "reset") -> m.Frozen:
    return m.Frozen(
        job="j",
        generation=generation,
        roster_id=11,
        held=(m.Held(job="j", generation=generation, step=step, digest="", where="memory"),),
        prepared_generation=generation,
        prepared_step=step + 1,
        suspect="v",
        evidence=evidence,
        reason="connection reset",
    )


class Worker:
    """A member core under test."""

    def __init__(self) -> None:
        self.core = Member(REGISTER)

    def does(self, event: member.Event) -> list[member.Effect]:
        effects = self.core.handle(event)
        self.core.check_invariants()
        return effects

    def tells(self, event: member.Event) -> list[m.Message]:
        return [e.message for e in self.does(event) if isinstance(e, member.Tell)]

    def become(self, state: MemberState) -> "Worker":
        """Go the usual way to a state."""
        way = [
            (MemberState.WARMING, PREPARE),
            (MemberState.READY, WARMED),
            (MemberState.FORMING, assign()),
            (MemberState.RUNNING, m.Running(job="j", generation=4, step=5)),
        ]
        for reached, event in way:
            if self.core.state is not state:
                self.does(event)
                assert self.core.state is reached
        return self


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_the_usual_life(worker: Worker) -> None:
    assert worker.tells(member.ControlOpened()) == [REGISTER]
    assert worker.does(REGISTERED) == []
    assert worker.does(PREPARE) == [PREPARE]
    assert worker.tells(WARMED) == [WARMED]
    assert worker.does(assign()) == [assign()]
    running = m.Running(job="j", generation=4, step=5)
    assert worker.tells(running) == [running]
    assert worker.tells(FINISHED) == [FINISHED]
    assert worker.core.state is MemberState.FINISHED
    assert worker.does(release()) == [member.Restart(reason="job j is done")]


# --- coming back -----------------------------------------------------------------------------


def test_it_registers_with_the_generation_that_it_runs(worker: Worker) -> None:
    worker.become(MemberState.RUNNING)
    (register,) = worker.tells(member.ControlOpened())
    assert isinstance(register, m.Register)
    assert (register.job, register.generation, register.roster_id) == ("j", 4, 11)
    assert (register.name, register.incarnation) == ("w", 7)


def test_how_the_last_process_ended_is_said_until_it_is_heard() -> None:
    core = Member(replace(REGISTER, last_end="ended by SIGSEGV"))

    def says() -> m.Register:
        (effect,) = core.handle(member.ControlOpened())
        assert isinstance(effect, member.Tell)
        assert isinstance(effect.message, m.Register)
        return effect.message

    assert says().last_end == says().last_end == "ended by SIGSEGV"
    core.handle(REGISTERED)
    assert says().last_end == ""


@pytest.mark.parametrize("state", [MemberState.FORMING, MemberState.RUNNING])
def test_member_that_trains_says_what_its_data_are_and_in_which_phase_it_is(
    worker: Worker, state: MemberState
) -> None:
    worker.become(state)
    (register,) = worker.tells(member.ControlOpened())
    assert isinstance(register, m.Register)
    assert register.phase == state.value
    assert (register.roster, register.held_generation, register.held_step) == (ROSTER, 3, 5)
    assert worker.tells(REGISTERED) == [WARMED]


def test_what_happens_between_register_and_registered_is_said_after_it(worker: Worker) -> None:
    """Said at once it would come before WARMED, and count for nothing."""
    worker.become(MemberState.FORMING)
    worker.tells(member.ControlOpened())
    assert worker.tells(m.Running(job="j", generation=4, step=5)) == []
    running = m.Running(job="j", generation=4, step=5)
    assert worker.tells(REGISTERED) == [WARMED, running]


def test_generation_that_ends_between_register_and_registered_is_told_after_it(
    worker: Worker,
) -> None:
    worker.become(MemberState.RUNNING)
    worker.tells(member.ControlOpened())
    assert worker.tells(froze()) == []
    warmed, frozen = worker.tells(REGISTERED)
    assert (warmed, type(frozen)) == (WARMED, m.Frozen)


def test_member_that_has_frozen_says_so_again(worker: Worker) -> None:
    worker.become(MemberState.RUNNING)
    (report,) = worker.tells(froze())
    assert worker.tells(REGISTERED) == [WARMED, report]


def test_failure_is_said_again_whatever_came_before(worker: Worker) -> None:
    worker.become(MemberState.RUNNING)
    assert worker.tells(FAILED) == [FAILED]
    assert FAILED in worker.tells(REGISTERED)


# --- preparing and assigning -----------------------------------------------------------------


def test_preparing_for_the_same_job_again_has_it_say_again_that_it_is_ready(
    worker: Worker,
) -> None:
    """A coordinator that has given it to this job only now has not listened before."""
    worker.become(MemberState.WARMING)
    assert worker.does(PREPARE) == []
    worker.become(MemberState.READY)
    (told,) = worker.does(PREPARE)
    assert isinstance(told, member.Tell)
    assert isinstance(told.message, m.Warmed)
    assert worker.core.state is MemberState.READY


@pytest.mark.parametrize(
    ("state", "generation"),
    [
        (MemberState.WARMING, 4),
        (MemberState.FORMING, 5),
        (MemberState.RUNNING, 5),
    ],
)
def test_it_is_assigned_only_when_it_is_free(
    worker: Worker, state: MemberState, generation: int
) -> None:
    worker.become(state)
    assert worker.does(assign(generation)) == []
    assert worker.core.state is state


# --- freezing --------------------------------------------------------------------------------


def diverged(generation: int) -> member.Diverged:
    return member.Diverged(generation=generation, reason="others differ")


def test_replica_that_differs_says_so_and_starts_afresh(worker: Worker) -> None:
    worker.become(MemberState.RUNNING)
    notice, restart = worker.does(diverged(4))
    assert notice == member.Tell(
        message=m.Notice(job="j", event="replicas_diverged", message="others differ")
    )
    assert restart == member.Restart(reason="others differ")


# --- probes ----------------------------------------------------------------------------------


def test_probe_is_made_and_answered_in_any_state(worker: Worker) -> None:
    probe = m.Probe(name="v", host="h", port=2)
    assert worker.does(probe) == [probe]
    probed = m.Probed(name="v", reachable=False, reason="no route")
    assert worker.tells(probed) == [probed]


def test_worker_that_stops_leaves_at_the_boundary(worker: Worker) -> None:
    worker.become(MemberState.RUNNING)
    worker.does(member.StopAsked(reason="stop"))
    effects = worker.does(freeze(at_boundary=True))
    assert effects == [member.EndAtBoundary(stop=False, leave=True)]


def test_finished_worker_repeats_its_report(worker: Worker) -> None:
    worker.become(MemberState.RUNNING)
    worker.does(FINISHED)
    assert worker.tells(freeze()) == [FINISHED]
    (register,) = worker.tells(member.ControlOpened())
    assert isinstance(register, m.Register)
    assert register.phase == "finished"


@pytest.mark.parametrize("event", [froze(3), m.Running(job="j", generation=3, step=5), diverged(3)])
def test_news_of_an_old_generation_is_ignored(worker: Worker, event: Any) -> None:
    worker.become(MemberState.RUNNING)
    assert worker.does(event) == []
    assert worker.core.state is MemberState.RUNNING


# --- ending ----------------------------------------------------------------------------------


def test_idle_worker_has_nothing_to_be_released_from(worker: Worker) -> None:
    assert worker.does(release()) == []


def test_worker_that_stops_exits_when_it_is_released(worker: Worker) -> None:
    worker.become(MemberState.RUNNING)
    worker.does(member.StopAsked(reason="stop"))
    assert worker.does(release()) == [member.Exit(reason="because")]


def test_a_worker_that_is_refused_says_so_while_it_is_idle() -> None:
    core = Member(REGISTER)
    refused = m.Registered(heartbeat_interval_s=0.5, heartbeat_timeout_s=5.0, refused="too old")
    core.handle(refused)
    assert core.explain() == "is refused: too old"
    core.handle(REGISTERED)
    assert core.explain() == "waits for a job"


@pytest.mark.parametrize("state", list(MemberState)[:5])
def test_nothing_is_saved_beside_training(worker: Worker, state: MemberState) -> None:
    worker.become(state)
    assert worker.does(m.Save(job="j", generation=4, step=6)) == []


def test_another_jobs_state_is_not_saved(worker: Worker) -> None:
    worker.become(MemberState.RUNNING).does(froze())
    assert worker.does(m.Save(job="other", generation=4, step=6)) == []


def test_failure_and_what_is_held_then_are_both_said_again(worker: Worker) -> None:
    worker.become(MemberState.RUNNING)
    failed = m.Failed(job="j", reason="boom", traceback="")
    worker.does(failed)
    (frozen,) = worker.tells(froze(evidence=""))
    told = worker.does(m.Registered(heartbeat_interval_s=0.25, heartbeat_timeout_s=1.5))
    assert [effect.message for effect in told][-2:] == [failed, frozen]
