"""The judge itself: every rule is broken here once, and noticed."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dtd.cluster import machine
from dtd.cluster.events import Incident
from dtd.cluster.records import Job
from dtd.cluster.transitions import GenerationState, JobState, MemberState
from dtd.engine.control_word import Flags
from dtd.wire import messages as m
from tests.sim import rows
from tests.sim.lineage import Memory
from tests.sim.oracle import Broken, Oracle
from tests.sim.replica import State, after_commit, corrupted, expected, fresh


def an_assign(generation: int = 1, *, start: tuple[int, int] = (0, 0), ranks: int = 2) -> m.Assign:
    roster = tuple(
        m.Member(name=f"w-{rank}", incarnation=rank, host="h", port=1, holds=True)
        for rank in range(ranks)
    )
    return m.Assign(
        job="j",
        generation=generation,
        roster_id=generation,
        rank=0,
        roster=roster,
        held_generation=start[0],
        held_step=start[1],
    )


def state(*generations: int) -> State:
    """An honest state, whose steps these generations have committed."""
    made = fresh("j")
    for generation in generations:
        made = after_commit(made, generation, rows.expected(made.data, made.step))
    return made


@pytest.fixture
def oracle() -> Oracle:
    return Oracle(remembered=lambda job: [], saved=lambda job: 3)


def decided(oracle: Oracle, assign: m.Assign, *living: Memory) -> m.Assign:
    """The coordinator forms a generation while these live."""
    start = (assign.held_generation, assign.held_step)
    names = [member.name for member in assign.roster]
    lineage = oracle.lineage
    lineage.decided("j", assign.generation, start, members=names, living=living)
    return assign


def running(oracle: Oracle, assign: m.Assign) -> m.Assign:
    oracle.joined(decided(oracle, assign), incarnation=7)
    return assign


def memory(own: State, prepared: State | None = None) -> Memory:
    return Memory(name="w-0", incarnation=7, state=own, prepared=prepared)


def test_ranks_that_divide_a_step_differently(oracle: Oracle) -> None:
    oracle.agreements.divided(an_assign(), 3, (1, 2))
    oracle.agreements.divided(an_assign(2), 3, ())
    with pytest.raises(Broken, match="divide a step's rows differently"):
        oracle.agreements.divided(an_assign(), 3, (2, 1))


def test_frame_of_another_roster(oracle: Oracle) -> None:
    oracle.accepted(1, 1)
    with pytest.raises(Broken, match="another roster"):
        oracle.accepted(1, 2)


@pytest.mark.parametrize("bucket", [[7, 6], [7, 8], [0]])
def test_missing_or_repeated_contribution(oracle: Oracle, bucket: list[int]) -> None:
    oracle.summed(3, [7, 7])
    with pytest.raises(Broken, match="missing or counted twice"):
        oracle.summed(3, bucket)


def test_two_rosters_with_one_number(oracle: Oracle) -> None:
    oracle.assigned(decided(oracle, an_assign()), "data")
    with pytest.raises(Broken, match="two rosters"):
        oracle.assigned(replace(an_assign(), roster_id=9), "data")


def test_different_data_in_one_roster(oracle: Oracle) -> None:
    oracle.assigned(decided(oracle, an_assign()), "data")
    with pytest.raises(Broken, match="different data"):
        oracle.assigned(an_assign(), "other")


def test_another_start_than_was_decided(oracle: Oracle) -> None:
    decided(oracle, an_assign())
    with pytest.raises(Broken, match="another start than was decided"):
        oracle.assigned(an_assign(start=(1, 1)), "data")


@pytest.mark.parametrize("witness", [memory(state(1, 1)), memory(state(1), state(1, 1))])
def test_committed_step_that_somebody_remembers_or_holds_prepared(
    oracle: Oracle, witness: Memory
) -> None:
    first = running(oracle, an_assign(ranks=1))
    oracle.committed(first, state(1))
    oracle.committed(first, state(1, 1))
    with pytest.raises(Broken, match="lost that somebody remembers"):
        decided(oracle, an_assign(2, start=(1, 1)), witness)


@pytest.mark.parametrize("gone", ["dead", "expelled"])
def test_committed_step_that_nobody_remembers_is_counted(oracle: Oracle, gone: str) -> None:
    oracle.committed(running(oracle, an_assign()), state(1))
    oracle.lineage.expelled("w-0", 7)
    decided(oracle, an_assign(2), *([memory(state(1))] if gone == "expelled" else []))
    assert oracle.lineage.lost("j") == 1
    oracle.committed(running(oracle, an_assign(2)), state(2))


def left_behind(oracle: Oracle, *newer: int) -> None:
    """The job has committed two steps, lost them, and committed others in generation 2."""
    oracle.lineage.committed(state(1))
    oracle.lineage.committed(state(1, 1))
    decided(oracle, an_assign(2))
    for steps in range(len(newer)):
        oracle.lineage.committed(state(*newer[: steps + 1]))


@pytest.mark.parametrize("newer", [(2,), (2, 2), (2, 2, 2)])
def test_branch_that_was_left_may_be_taken_up_if_nobody_remembers_the_newer_one(
    oracle: Oracle, newer: tuple[int, ...]
) -> None:
    left_behind(oracle, *newer)
    oracle.adopted(decided(oracle, an_assign(3, start=(1, 2))), state(1, 1))
    oracle.lineage.committed(state(1, 1, 3))
    assert oracle.lineage.lost("j") == 2 + max(0, len(newer) - 2)
    assert oracle.lineage.is_given_up(state(2))
    oracle.lineage.removed([state(1)])
    with pytest.raises(Broken, match="a branch that the job has left"):
        oracle.lineage.removed([state(2)])


@pytest.mark.parametrize("newer", [(2,), (2, 2), (2, 2, 2)])
def test_branch_that_was_left_is_not_taken_up_while_somebody_remembers_the_newer_one(
    oracle: Oracle, newer: tuple[int, ...]
) -> None:
    left_behind(oracle, *newer)
    with pytest.raises(Broken, match="lost that somebody remembers"):
        decided(oracle, an_assign(3, start=(1, 2)), memory(state(*newer)))


def test_restored_store_that_forgot_a_loss_may_have_what_was_lost_deleted(oracle: Oracle) -> None:
    oracle.lineage.committed(state(1))
    oracle.backed_up()
    decided(oracle, an_assign(2))
    with pytest.raises(Broken, match="a branch that the job has left"):
        oracle.lineage.removed([state(1)])
    oracle.went_back()
    oracle.lineage.removed([state(1)])


def test_restored_store_that_knows_a_loss_keeps_what_was_lost(oracle: Oracle) -> None:
    oracle.lineage.committed(state(1))
    decided(oracle, an_assign(2))
    oracle.backed_up()
    oracle.went_back()
    with pytest.raises(Broken, match="a branch that the job has left"):
        oracle.lineage.removed([state(1)])


def test_forgotten_worker_may_finish_what_it_had_begun(oracle: Oracle) -> None:
    old = running(oracle, an_assign(ranks=1))
    oracle.committed(old, state(1))
    running(oracle, an_assign(2))
    oracle.committed(old, state(1))
    with pytest.raises(Broken, match="a fenced generation goes on"):
        oracle.committed(old, state(1, 1))


def test_prepared_step_is_committed_by_the_decision(oracle: Oracle) -> None:
    running(oracle, an_assign())
    decided(oracle, an_assign(2, start=(1, 1)), memory(fresh("j"), state(1)))
    oracle.completed(state(1))
    with pytest.raises(Broken, match="committed in two ways"):
        oracle.completed(state(3))


def test_step_that_is_committed_in_two_ways(oracle: Oracle) -> None:
    oracle.lineage.committed(state(1))
    with pytest.raises(Broken, match="committed in two ways"):
        oracle.lineage.committed(state(2))


def test_start_from_another_state(oracle: Oracle) -> None:
    oracle.adopted(an_assign(), fresh("j"))
    with pytest.raises(Broken, match="another state than it was told"):
        oracle.adopted(an_assign(2, start=(1, 1)), state(1, 1))


def test_survivor_that_copies(oracle: Oracle) -> None:
    running(oracle, an_assign())
    second = an_assign(2, start=(1, 1))
    oracle.lineage.copies(second, 8, state(1))
    oracle.lineage.copies(second, 7, None)
    with pytest.raises(Broken, match="a survivor copies"):
        oracle.lineage.copies(second, 7, state(1))


def test_state_that_is_not_what_its_step_says(oracle: Oracle) -> None:
    assign = running(oracle, an_assign())
    with pytest.raises(Broken, match="not what its step says"):
        oracle.committed(assign, replace(state(1), step=2))
    oracle.committed(assign, corrupted(state(1), "w-0"))


def test_rank_that_is_two_steps_ahead(oracle: Oracle) -> None:
    assign = running(oracle, an_assign())
    oracle.committed(assign, state(1))
    with pytest.raises(Broken, match="two steps ahead"):
        oracle.committed(assign, state(1, 1))


def test_replicas_that_differ_and_go_on(oracle: Oracle) -> None:
    oracle.agreements.agreed(an_assign(), state(1))
    with pytest.raises(Broken, match="replicas that differ go on"):
        oracle.agreements.agreed(an_assign(), corrupted(state(1), "w-1"))


def start_over(oracle: Oracle, generation: int, *brought: State, ranks: int = 3) -> m.Assign:
    """A generation starts from a state that its first ranks bring, and the others copy."""
    assign = an_assign(generation, start=(1, 1), ranks=ranks)
    roster = [replace(one, holds=at < len(brought)) for at, one in enumerate(assign.roster)]
    for rank, one in enumerate([*brought, *brought[:1] * (ranks - len(brought))]):
        oracle.agreements.adopted(replace(assign, rank=rank, roster=tuple(roster)), one)
    return assign


def test_flipped_bits_that_nobody_can_know_of_are_trained_on(oracle: Oracle) -> None:
    right, wrong = state(1), corrupted(state(1), "w-0")
    oracle.agreements.agreed(start_over(oracle, 2, right, right), right)
    for brought in ([wrong], [wrong, wrong]):
        oracle.agreements.agreed(start_over(oracle, 3, *brought), wrong)
    oracle.agreements.agreed(start_over(oracle, 4, right), wrong)  # they flip before it is copied


def test_flipped_bits_of_which_a_rank_knows_are_not_trained_on(oracle: Oracle) -> None:
    right, wrong = state(1), corrupted(state(1), "w-0")
    oracle.agreements.agreed(start_over(oracle, 2, right, right), right)
    with pytest.raises(Broken, match="replicas that differ go on"):
        oracle.agreements.agreed(start_over(oracle, 3, wrong, right), wrong)


def test_another_state_without_flipped_bits_is_not_trained_on(oracle: Oracle) -> None:
    oracle.agreements.agreed(start_over(oracle, 2, state(1)), state(1))
    with pytest.raises(Broken, match="replicas that differ go on"):
        oracle.agreements.agreed(start_over(oracle, 3, state(1)), replace(state(1), content="x"))


def test_majority_that_is_none(oracle: Oracle) -> None:
    said = [b"a", b"a", b"b"]
    assign = an_assign(ranks=3)
    oracle.agreements.differ(assign, 4, said, None, majority=True)
    oracle.agreements.differ(assign, 4, said, {1, 2}, majority=False)
    with pytest.raises(Broken, match="a majority is none"):
        oracle.agreements.differ(assign, 4, said, {1, 2}, majority=True)


def test_row_that_is_left_out(oracle: Oracle) -> None:
    assign = running(oracle, an_assign())
    one = fresh("j")
    total = rows.expected(one.data, 0) - rows.value(0, 7)
    with pytest.raises(Broken, match="not what its step says"):
        oracle.committed(assign, after_commit(one, 1, total))


def test_checkpoint_that_is_not_where_it_is_said_to_be(oracle: Oracle) -> None:
    job = Job(id="j", spec={}, checkpoint_generation=1, checkpoint_step=1)
    oracle.keeping.published("w-0", state(1))
    oracle.keeping.written(replace(job, checkpoint_holders=("w-0",)))
    with pytest.raises(Broken, match="where it is not"):
        oracle.keeping.written(replace(job, checkpoint_holders=("w-0", "w-1")))


def test_older_generation_that_is_obeyed(oracle: Oracle) -> None:
    oracle.obeyed("w-0", an_assign(2), an_assign(3), ["forms a ring"])
    oracle.obeyed("w-0", an_assign(2), an_assign(2), [])
    with pytest.raises(Broken, match="older generation"):
        oracle.obeyed("w-0", an_assign(2), an_assign(2), ["forms a ring"])


def test_fenced_generation_that_goes_on(oracle: Oracle) -> None:
    old = running(oracle, an_assign(1, ranks=1))
    oracle.committed(old, state(1))
    running(oracle, an_assign(2, start=(1, 1)))
    with pytest.raises(Broken, match="a fenced generation goes on"):
        oracle.committed(old, state(1, 1))


def test_innocent_worker_that_suffers(oracle: Oracle) -> None:
    lost = Incident(kind="worker_lost", message="w-0 is lost", worker="w-0")
    barred = Incident(kind="worker_barred", message="w-1 stays out: w-0, w-2", worker="w-1")
    oracle.causes.struck(["w-9"])
    judges: list[Callable[[], None]] = [
        lambda: oracle.incident(lost),
        lambda: oracle.incident(barred),
        lambda: oracle.leaves("w-0", "why"),
        lambda: oracle.causes.froze(an_assign(), "silent", "why"),
    ]
    for judge in judges:
        with pytest.raises(Broken, match="without a cause"):
            judge()
    oracle.causes.struck(["w-0"])
    oracle.incident(lost)
    oracle.incident(barred)
    oracle.causes.froze(an_assign(), "silent", "why")


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core's machine says what the core says."""
    monkeypatch.setattr(machine, "explain", lambda one: one.explain())
    monkeypatch.setattr(machine, "next_deadline", lambda one, now: one.next_deadline(now))


def core(**more: Any) -> Any:
    """A core that says what the test wants."""
    return SimpleNamespace(
        job=Job(id="j", spec={}),
        workers={},
        epoch=0,
        run=SimpleNamespace(phase=GenerationState.NONE, generation=0, roster=[], decision=None),
        members=lambda: more.get("members", []),
        check_invariants=lambda: None,
        explain=lambda: more.get("explain", "why"),
        next_deadline=lambda now: more.get("deadline"),
        state=None,
    )


@pytest.mark.parametrize(
    ("judge", "rule"),
    [
        (lambda o: o.membership(core(explain=""), 1.0, ()), "does not say for what"),
        (lambda o: o.membership(core(deadline=0.5), 1.0, ()), "asked for again"),
        (lambda o: o.membership(core(members=["w"]), 1.0, ()), "nobody looks at the clock"),
        (lambda o: o.member("w", core(explain="")), "a member waits"),
        (lambda o: [o.ring(core(explain="")) for _ in range(16)], "a ring does not say"),
    ],
)
def test_core_that_is_silent_or_forgets_the_clock(
    oracle: Oracle, judge: Callable[[Oracle], None], rule: str
) -> None:
    with pytest.raises(Broken, match=rule):
        judge(oracle)


def done(job: str = "j", **more: Any) -> Job:
    values: dict[str, Any] = {"step": 3, "total_steps": 3, **more}
    digests = {"w": values.pop("digest", expected(job, values["step"]))}
    return Job(
        id=job,
        spec={"model": {"rows": 50, "batch": 16}, "checkpoint": {"copies": 1}},
        state=JobState.DONE,
        result={"replica_digests": digests},
        **values,
    )


def test_honest_end(oracle: Oracle) -> None:
    oracle.ended(done(), written=True)
    assert oracle.ended_jobs["j"].step == 3
    with pytest.raises(Broken, match="ends twice"):
        oracle.ended(done(), written=True)


def test_result_on_too_few_disks(oracle: Oracle) -> None:
    held = replace(fresh("j"), step=3, generation=1)
    oracle = Oracle(remembered=lambda job: [memory(held)], saved=lambda job: 3)
    oracle.membership(core(deadline=2.0), 1.0, {"w-0"})
    job = done()
    job.spec["checkpoint"]["copies"] = 2
    with pytest.raises(Broken, match="too few disks have the result"):
        oracle.ended(job, written=True)


def test_result_on_all_disks_there_are(oracle: Oracle) -> None:
    held = replace(fresh("j"), step=3, generation=1)
    oracle = Oracle(remembered=lambda job: [memory(held)], saved=lambda job: 3)
    oracle.membership(core(deadline=2.0), 1.0, {"w-0"})
    oracle.keeping.published("w-0", held)
    job = done()
    job.spec["checkpoint"]["copies"] = 2
    oracle.ended(job, written=True)


def test_member_that_does_not_say_that_it_has_left(oracle: Oracle) -> None:
    member = core()
    oracle.idles("w-0", member)
    member.state = MemberState.RUNNING
    with pytest.raises(Broken, match="does not say so"):
        oracle.idles("w-0", member)


def test_member_that_does_not_heed_that_its_generation_ends(oracle: Oracle) -> None:
    freeze = m.Freeze(generation=2, at_boundary=False, stop=False, reason="", leave=False)
    oracle.obeyed("w-0", an_assign(2), freeze, ["breaks its ring"])
    with pytest.raises(Broken, match="does not heed"):
        oracle.obeyed("w-0", an_assign(2), freeze, [])


def test_state_that_is_forgotten_although_a_majority_holds_one(oracle: Oracle) -> None:
    oracle.agreements.forgets("w-0", majority=False)
    with pytest.raises(Broken, match="is forgotten"):
        oracle.agreements.forgets("w-0", majority=True)


def test_state_that_is_kept_although_it_differs(oracle: Oracle) -> None:
    oracle.agreements.keeps("w-0", differs=False)
    with pytest.raises(Broken, match="is kept that differs"):
        oracle.agreements.keeps("w-0", differs=True)


def test_state_that_is_trained_on_although_it_differs(oracle: Oracle) -> None:
    oracle.agreements.differ(an_assign(1), 2, [b"a", b"b"], None, majority=False)
    oracle.adopted(decided(oracle, an_assign(2, start=(1, 1))), state(1))
    with pytest.raises(Broken, match="trained on that differs"):
        oracle.adopted(decided(oracle, an_assign(3, start=(1, 2))), state(1, 1))


def test_request_that_is_forgotten(oracle: Oracle) -> None:
    oracle.asked("w-0", Flags(), Flags(stop=True))
    with pytest.raises(Broken, match="asked for is forgotten"):
        oracle.asked("w-0", Flags(stop=True), Flags(leave=True))


def test_branch_that_was_left_may_be_taken_up_again(oracle: Oracle) -> None:
    oracle.committed(running(oracle, an_assign(1, ranks=1)), state(1))
    back = running(oracle, an_assign(2, ranks=1))
    oracle.committed(back, state(2))
    oracle.committed(back, state(2, 2))
    assign = replace(an_assign(3, start=(1, 1), ranks=1), held_generation=1)
    oracle.adopted(decided(oracle, assign), state(1))
    with pytest.raises(Broken, match="in two ways"):
        oracle.adopted(assign, replace(state(2), generation=1))


def test_restored_store_may_take_up_a_branch_that_it_does_not_know_to_be_left(
    oracle: Oracle,
) -> None:
    first = running(oracle, an_assign(1, ranks=1))
    oracle.committed(first, state(1))
    oracle.committed(first, state(1, 1))
    oracle.committed(running(oracle, an_assign(2, ranks=1)), state(2))
    with pytest.raises(Broken, match="of a branch that the job has left"):
        oracle.lineage.removed([state(1)])
    oracle.went_back()
    assign = replace(an_assign(3, start=(1, 2), ranks=1), held_generation=1)
    oracle.adopted(decided(oracle, assign), state(1, 1))
    oracle.lineage.removed([state(1)])
    with pytest.raises(Broken, match="of a branch that the job has left"):
        oracle.lineage.removed([state(2)])


def test_loss_is_excused_after_a_wait(oracle: Oracle) -> None:
    decided(oracle, an_assign(1))
    oracle.committed(running(oracle, an_assign(1)), state(1))
    oracle.lineage.decided(
        "j", 2, (0, 0), members=["w-0"], living=[memory(state(1))], excused=lambda name: True
    )
    assert oracle.lineage.lost("j") == 1


@pytest.mark.parametrize(
    ("job", "rule"),
    [
        (done(total_steps=4), "before its last step"),
        (done(step=2, total_steps=2), "no disk has the result"),
        (done(digest="other"), "differ from an honest one"),
        (done(steps_lost=1), "called lost that are not"),
    ],
)
def test_dishonest_end(oracle: Oracle, job: Job, rule: str) -> None:
    with pytest.raises(Broken, match=rule):
        oracle.ended(job, written=True)
