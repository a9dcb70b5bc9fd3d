"""What a worker says counts only where it can be true; whoever says what cannot be is let go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dtd.cluster import hearing
from dtd.cluster.events import Submitted
from dtd.cluster.hearing import Word
from dtd.cluster.records import Job
from dtd.cluster.state_records import CoordinatorIdentity
from dtd.wire import messages as m

STEPS = 100


def word(desk: Any, name: str, message: m.Message) -> Word:
    return hearing.judge(desk.cluster, name, message).word


def running(desk: Any, *names: str) -> int:
    """A generation of a job of `STEPS` steps that runs."""
    desk.submit()
    for name in names:
        desk.register(name)
    for name in names:
        desk.warmed(name, steps_total=STEPS)
    return int(desk.all_run(*names))


def held(generation: int, step: int, where: str = "memory", *part: int) -> m.Held:
    return m.Held(job="j-1", generation=generation, step=step, digest="", where=where, part=part)


def frozen(generation: int, *holds: m.Held, prepared: tuple[int, int] = (0, 0)) -> m.Frozen:
    return m.Frozen(
        job="j-1",
        generation=generation,
        roster_id=1,
        prepared_generation=prepared[0],
        prepared_step=prepared[1],
        held=holds,
        suspect="",
        evidence="",
        reason="why",
    )


def finished(generation: int, step: int = STEPS, by: int | None = None) -> m.Finished:
    return m.Finished(
        job="j-1",
        generation=generation,
        held_generation=generation if by is None else by,
        step=step,
        digest="x",
        result={},
    )


def saved(generation: int, step: int = 5, job: str = "j-1") -> m.CheckpointSaved:
    return m.CheckpointSaved(
        job=job,
        generation=generation,
        step=step,
        digest="d",
        size_bytes=1,
        directory="/x",
        metrics={},
        kept=(),
    )


def progress(generation: int, step: int = 5) -> m.Progress:
    return m.Progress(
        job="j-1",
        generation=generation,
        step=step,
        epoch=0,
        loss=1.0,
        learning_rate=0.1,
        grad_norm=1.0,
        rows=1,
        step_s=0.1,
        compute_s=0.1,
        comm_s=0.0,
        exposed_s=0.0,
        skipped=False,
        skipped_steps=0,
    )


def failed(step: int = 0, job: str = "j-1") -> m.Failed:
    return m.Failed(job=job, reason="no", traceback="", step=step)


def ran(generation: int, step: int = 0) -> m.Running:
    return m.Running(job="j-1", generation=generation, step=step)


def beat(generation: int, step: int, job: str = "j-1") -> m.Heartbeat:
    return m.Heartbeat(state="running", job=job, generation=generation, step=step)


def evaluated(step: int) -> m.Evaluated:
    return m.Evaluated(job="j-1", step=step, metrics={"loss": 1.0})


NOTICE = m.Notice(job="j-1", event="settings_ignored", message="x")


# --- what cannot be true -------------------------------------------------------------------------

NEVER = {
    "a heartbeat of a generation to come": beat(2, 5),
    "a generation to come runs": ran(2),
    "a generation to come froze": frozen(2),
    "it holds what a later generation committed": frozen(1, held(2, 5), prepared=(2, 5)),
    "it has prepared two steps more than it holds": frozen(1, held(1, 5), prepared=(1, 7)),
    "it has prepared a step in a generation to come": frozen(1, held(1, 5), prepared=(2, 6)),
    "it has prepared a step of what is on its disk": frozen(
        1, held(0, 5, "checkpoint"), prepared=(1, 6)
    ),
    "it holds two states in memory": frozen(1, held(1, 5), held(1, 4), prepared=(1, 5)),
    "its shards are no set": frozen(1, held(1, 5, "memory", 1, 1, 0, 1), prepared=(1, 5)),
    "the shards of its second state are no set": frozen(
        1, held(1, 5), held(1, 4, "checkpoint", 1, 2), prepared=(1, 5)
    ),
    "the shards that it has finished are no set": replace(finished(1), part=(2, 1, 3, 1)),
    "the shards that it has saved are no set": replace(saved(1), part=(0, 0, 1, 1)),
    "a generation to come has finished": finished(2),
    "it has finished what a later generation committed": finished(1, by=2),
    "it has saved a state of a generation to come": saved(2),
    "progress of a generation to come": progress(2),
    "lines of a rank that it never was": m.JobOutput(job="j-1", rank=3),
    "it held memory when it warmed up": m.Warmed(
        job="j-1",
        dataset_rows=100,
        dataset_fingerprint="d",
        plan_digest="p",
        numerics_fingerprint="n",
        parameters=1,
        steps_total=STEPS,
        held=(held(1, 5),),
    ),
    "it warmed up with shards that are no set": m.Warmed(
        job="j-1",
        dataset_rows=100,
        dataset_fingerprint="d",
        plan_digest="p",
        numerics_fingerprint="n",
        parameters=1,
        steps_total=STEPS,
        held=(held(1, 5, "checkpoint", 1, 2, 1, 3),),
    ),
}


@pytest.mark.parametrize("what", NEVER)
def test_what_no_honest_worker_says_costs_the_connection(desk: Any, what: str) -> None:
    running(desk, "a", "b")
    before = (desk.cluster.job.step, desk.state("a"), desk.cluster.job.checkpoint_step)
    desk.say("a", NEVER[what])
    assert [one.name for one in desk.disconnected] == ["a"]
    (told,) = desk.told_of("report_false")
    assert told.worker == "a"
    assert type(NEVER[what]).__name__ in told.message
    assert (desk.cluster.job.step, desk.state("a"), desk.cluster.job.checkpoint_step) == before
    assert desk.cluster.run.generation == 1


def test_nobody_says_later_that_it_trains_with_something_else(desk: Any) -> None:
    """Else one of two could shorten the job, so that what the other says seems false."""
    running(desk, "a", "b")
    desk.commit(50)
    desk.warmed("a", steps_total=STEPS)
    assert desk.disconnected == []
    desk.warmed("a", steps_total=10)
    desk.beat("b", step=51)
    assert [one.name for one in desk.disconnected] == ["a"]
    assert desk.cluster.job.total_steps == STEPS


def test_nor_does_one_that_comes_back_change_how_long_the_job_is(desk: Any) -> None:
    number = running(desk, "a", "b")
    desk.commit(50)
    desk.froze("a", generation=number, step=50)
    desk.lost("a")
    desk.back("a", "frozen")  # and says that there are 10,000 steps
    desk.froze("a", generation=number, step=50)
    desk.froze("b", generation=number, step=50)
    assert desk.cluster.job.total_steps == STEPS
    assert "b" not in [one.name for one in desk.disconnected]


def test_a_forming_generation_starts_from_where_it_starts(desk: Any) -> None:
    desk.submit(min_workers=2)
    desk.warm_up("a", "b")
    desk.say("a", ran(1, step=7))
    assert desk.state("a") == "forming"
    assert [one.name for one in desk.disconnected] == ["a"]


def test_only_rank_0_tells_of_steps(desk: Any) -> None:
    number = running(desk, "a", "b")
    assert word(desk, "a", progress(number)) is Word.COUNTS
    assert desk.core.hears("a", progress(number))
    desk.say("a", m.JobOutput(job="j-1", rank=0))  # for the shell alone
    assert word(desk, "b", progress(number)) is Word.FALSE
    assert word(desk, "a", evaluated(5)) is Word.COUNTS
    assert word(desk, "b", evaluated(5)) is Word.FALSE
    desk.register("c")
    assert word(desk, "c", evaluated(5)) is Word.FALSE


def test_nobody_speaks_of_generations_in_which_it_was_not(desk: Any) -> None:
    """Their numbers are known, but not to be its own."""
    first = running(desk, "a", "b")
    desk.lost("b")
    desk.froze("a", generation=first, step=3)
    second = desk.all_run("a")
    desk.back("b", generation=first)
    for message in (beat(second, 5), frozen(second), finished(second), saved(second)):
        assert word(desk, "b", message) is Word.FALSE
    for message in (
        frozen(first, held(second, 5), prepared=(second, 5)),
        finished(first, 5, by=second),
    ):
        assert word(desk, "b", message) is Word.FALSE


def test_who_trains_on_while_it_is_not_known_what_was_last_tells_of_its_steps(
    make_desk: Any,
) -> None:
    """Curves go on; which step the job is at is told by the generation that will count."""
    desk = make_desk(
        identity=CoordinatorIdentity(version="", store_id="s", epoch=2), last_generation=5
    )
    spec = {"job": {"name": "j"}, "elastic": {"warmup_timeout_s": 120.0, "min_workers": 1}}
    desk.handle(Submitted(job=Job(id="j-1", spec=spec, generation=1, roster=("a", "b"))))
    desk.register("a", job="j-1", generation=1, phase="running")
    desk.say("a", progress(1, step=7))
    assert (word(desk, "a", progress(1, step=8)), desk.cluster.job.step) == (Word.COUNTS, 0)
    assert desk.cluster.job.loss is None


def test_a_newcomer_saved_nothing_and_left_nothing(desk: Any) -> None:
    number = running(desk, "a", "b")
    desk.register("c")
    for message in (saved(number), frozen(number), finished(number), ran(number)):
        assert word(desk, "c", message) is Word.FALSE


# --- what was true once --------------------------------------------------------------------------


def test_what_crossed_a_newer_generation_on_its_way_is_passed_over_in_silence(desk: Any) -> None:
    number = running(desk, "a", "b")
    for name in "ab":
        desk.froze(name, generation=number, step=3)
    desk.all_run("a", "b")
    late = (ran(number, 0), frozen(number), finished(number, 3), progress(number, 3))
    for message in late:
        assert word(desk, "a", message) is Word.LATE
        desk.say("a", message)
    assert word(desk, "b", progress(number, 3)) is Word.LATE  # its rank may have been another
    assert word(desk, "a", saved(number, 3)) is Word.COUNTS
    assert word(desk, "a", beat(number, 3)) is Word.COUNTS
    assert desk.told_of("report_dropped") == desk.told_of("report_false") == []
    assert desk.disconnected == []


def test_what_is_said_again_is_passed_over(desk: Any) -> None:
    number = running(desk, "a", "b")
    assert word(desk, "a", ran(number)) is Word.LATE
    desk.froze("a", generation=number, step=3)
    again = frozen(number, held(number, 3), prepared=(number, 3))
    assert word(desk, "a", again) is Word.LATE
    assert word(desk, "a", finished(number)) is Word.LATE
    assert word(desk, "a", evaluated(3)) is Word.LATE


def test_who_was_let_go_may_still_tell_what_it_has_saved_and_printed(desk: Any) -> None:
    number = running(desk, "a")
    desk.finished("a", generation=number, step=STEPS)
    assert desk.state("a") == "released"
    assert word(desk, "a", saved(number, STEPS)) is Word.COUNTS
    assert word(desk, "a", m.JobOutput(job="j-1", rank=0)) is Word.COUNTS
    over = (ran(number), finished(number), progress(number), evaluated(5), failed(), NOTICE)
    for message in over:
        assert word(desk, "a", message) is Word.LATE
    desk.say("a", m.JobOutput(job="j-1", rank=0))
    desk.say("a", saved(number, STEPS))
    assert desk.disconnected == []
    assert word(desk, "a", NEVER["it held memory when it warmed up"]) is Word.FALSE


def test_nobody_is_heard_who_is_not_known_or_belongs_elsewhere(desk: Any) -> None:
    number = running(desk, "a")
    assert word(desk, "nobody", saved(number)) is Word.LATE
    desk.register("s", job="other", generation=1)
    assert desk.cluster.workers["s"].stray
    assert word(desk, "s", saved(number)) is Word.LATE
    assert word(desk, "s", beat(99, 5)) is Word.COUNTS  # it lives
    assert word(desk, "a", m.Leave(reason="x")) is Word.COUNTS


def test_a_process_that_calls_again_keeps_what_it_was_told(desk: Any) -> None:
    desk.submit(min_workers=2)
    desk.register("a")
    desk.lost("a")
    desk.register("a")
    assert desk.cluster.workers["a"].participation.jobs == ("j-1",)
    desk.lost("a")
    desk.register("a", incarnation=2)
    assert desk.cluster.workers["a"].participation.jobs == ("j-1",)


def test_who_comes_back_has_its_rank_from_the_roster_that_it_shows(desk: Any) -> None:
    number = running(desk, "a", "b")
    desk.lost("b", farewell=False)
    roster = tuple(
        m.Member(name=name, incarnation=1, host="h", port=1, holds=True) for name in "ab"
    )
    desk.back("b", roster=roster)
    assert (
        desk.cluster.workers["b"].participation.rank,
        desk.cluster.workers["b"].participation.generation,
    ) == (1, number)
    assert word(desk, "b", m.JobOutput(job="j-1", rank=1)) is Word.COUNTS


# --- what nobody has asked for -------------------------------------------------------------------


def test_who_was_not_told_of_a_job_does_not_speak_of_it(desk: Any) -> None:
    number = running(desk, "a")
    desk.handle(Submitted(job=Job(id="j-2", spec={})))
    for message in (m.JobOutput(job="j-2", rank=0), saved(number, job="j-2")):
        assert word(desk, "a", message) is Word.OUT_OF_TURN
    desk.cluster.workers["a"].participation.jobs = ()
    for message in (NOTICE, failed(), saved(number), frozen(number), progress(number)):
        assert word(desk, "a", message) is Word.OUT_OF_TURN
    assert word(desk, "a", beat(99, 1)) is Word.COUNTS


def test_what_is_dropped_is_counted_and_told_of_now_and_then(desk: Any) -> None:
    running(desk, "a")
    output = m.JobOutput(job="j-9", rank=0)
    for _ in range(5):
        desk.say("a", output)
    assert [one.details["dropped"] for one in desk.told_of("report_dropped")] == [1]
    desk.tick(hearing.TELL_EVERY_S - 1.0)
    desk.say("a", output)
    desk.tick(hearing.TELL_EVERY_S)
    desk.say("a", output)
    assert [one.details["dropped"] for one in desk.told_of("report_dropped")] == [1, 6]
    assert "6 such messages" in desk.told_of("report_dropped")[-1].message
    assert desk.disconnected == []


def test_tallies_are_bounded(desk: Any) -> None:
    verdict = hearing.Verdict(Word.OUT_OF_TURN, "why")
    for number in range(hearing.MAX_TALLIES + 5):
        hearing.turn_away(desk.cluster, f"w{number}", NOTICE, verdict)
    assert len(desk.cluster.trust.tallies) == hearing.MAX_TALLIES


# --- who comes back ------------------------------------------------------------------------------


def test_who_never_warmed_up_becomes_no_donor(desk: Any) -> None:
    """It comes with an old generation, which is true, and says nothing of its data and model."""
    number = running(desk, "a", "b")
    for name in "ab":
        desk.froze(name, generation=number, step=3)
    desk.all_run("a", "b")
    register = m.Register(
        name="x",
        incarnation=7,
        pid=1,
        host="h",
        device="cpu",
        data_host="h",
        data_port=1,
        version="0",
        job="j-1",
        generation=number,
        phase="running",
    )
    desk.say("x", register)
    assert desk.told("x", m.Freeze)[0].generation == number
    desk.say("x", frozen(number, held(number, 50), prepared=(number, 50)))
    assert desk.state("x") == "warming"
    assert desk.told("x", m.Assign) == []
    assert desk.told_of("report_dropped")[0].worker == "x"


def test_a_member_that_does_not_say_with_what_it_trains_takes_no_further_part(desk: Any) -> None:
    """After a restart of the coordinator every member says so again."""
    number = running(desk, "a", "b")
    desk.cluster.workers["b"].holdings.warmed = None
    desk.say("b", frozen(number, held(number, 3), prepared=(number, 3)))
    assert desk.state("b") == "running"


@pytest.mark.parametrize("number", [-1, 0])
def test_a_state_that_no_generation_can_have_committed_is_held_by_nobody(
    desk: Any, number: int
) -> None:
    """It would be newer than the others' by its name, and all would copy it."""
    desk.submit()
    for _ in range(3):
        generation = (
            desk.run_generation("a", "b") if not desk.cluster.run.roster else desk.all_run(*"ab")
        )
        for name in "ab":
            desk.froze(name, generation=generation, step=0)
    desk.all_run("a", "b")
    newest = desk.cluster.run.generation
    desk.froze("a", generation=newest, step=0, held_generation=newest + number)
    assert [one.worker for one in desk.told_of("report_false")] == ["a"]
    assert "no state has step 0" in desk.disconnected[-1].reason


def test_a_checkpoint_that_no_generation_can_have_committed_does_not_count(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    desk.register("c")
    held = m.Held(job="j-1", generation=1, step=0, digest="", where="checkpoint")
    desk.warmed("c", held=(held,))
    assert [one.worker for one in desk.told_of("report_contradicted")] == ["c"]


def test_a_failure_beyond_the_jobs_end_counts(desk: Any) -> None:
    """A state that another job left may have more steps than this one has."""
    job = desk.submit()
    job.total_steps = 100
    desk.register("a")
    said = m.Failed(job="j-1", reason="the state has 128 steps", traceback="", step=128)
    assert hearing.judge(desk.cluster, "a", said).word is Word.COUNTS


def test_everything_that_a_worker_may_say_is_judged_or_concerns_itself() -> None:
    """A message that is new in the catalogue needs a rule here, or a reason to have none."""
    answers = {m.Probed, m.Measured, m.CheckpointDropped, m.ModelPinned}
    own = {m.Register, m.Leave, m.GetPackage, m.GetParts, m.Renew}
    own |= {m.Error, m.Goodbye, m.ModelsHeld}
    assert not (answers | own) & set(hearing._RULES)
    assert set(hearing._RULES) | answers | own == m.from_opener(m.Role.WORKER)
