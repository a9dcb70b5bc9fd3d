"""The step protocol of several ranks, through any order of steps, breaks and generations.

The coordinator's choice of the state that a generation starts from is played with it, since one is
right only together with the other.

What is played here is the least that a shell does: a rank's state is the list of what was applied
to it.  Whatever happens, a state has one meaning: ranks that name a key hold the same list.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from dtd.cluster.generation import roster, states
from dtd.cluster.records import Holdings, Job, Worker
from dtd.engine.control_word import ControlEntry, Flags, encode_entry
from dtd.engine.step_protocol import FRESH, Phase, StateKey, StepProtocol, TakeOver
from dtd.wire import messages as m
from tests.registrations import registration

RANKS = 3


class Shell:
    """A rank: a state, the results of a step, and the protocol that says what to do with them."""

    def __init__(self) -> None:
        self.protocol = StepProtocol()
        self.protocol.replaced(FRESH)
        self.state: tuple[StateKey, ...] = ()
        self.result: StateKey | None = None

    def prepare(self, generation: int) -> None:
        self.protocol.open()
        self.protocol.begin(generation)
        self.protocol.prepare()
        self.result = StateKey(generation, len(self.state) + 1)

    def commit(self, *, skipped: bool) -> None:
        assert self.result is not None
        if not skipped:
            self.protocol.apply()
        self.state = (*self.state, self.result)
        assert self.protocol.commit() == self.result
        self.result = None

    def freeze(self) -> None:
        if self.protocol.interrupted():
            self.discard()

    def discard(self) -> None:
        if self.protocol.discard():
            self.result = None

    def take_over(self, start: StateKey, donor: tuple[StateKey, ...] | None) -> None:
        if donor is not None:
            self.discard()
            self.protocol.replace()
            self.state = donor
            self.protocol.replaced(start)
            return
        way = self.protocol.take_over(start)
        if way is TakeOver.COMMIT:
            self.commit(skipped=False)
            return
        self.discard()
        assert way is TakeOver.KEEP, "nothing here lies on disks"

    def lose_memory(self) -> None:
        """Its process dies, and another one starts under its name."""
        self.protocol, self.state, self.result = StepProtocol(), (), None


def state_of(ranks: list[Shell], key: StateKey) -> tuple[StateKey, ...] | None:
    """The state of this key, if some rank holds it or has it prepared."""
    for rank in ranks:
        report = rank.protocol.report()
        if report.live == key:
            return rank.state
        if report.prepared == key and rank.result is not None:
            return (*rank.state, rank.result)
    return None


def newest(ranks: list[Shell]) -> StateKey:
    """As the coordinator chooses: the prepared step if all hold it, else the greatest live key."""
    reports = [rank.protocol.report() for rank in ranks]
    prepared = {report.prepared for report in reports}
    (one,) = prepared if len(prepared) == 1 else (None,)
    if one is not None:
        return one
    return max(report.live for report in reports if report.live is not None)


def one_meaning(ranks: list[Shell]) -> None:
    meanings: dict[StateKey, tuple[StateKey, ...]] = {}
    for rank in ranks:
        live = rank.protocol.live
        if live is not None:
            assert meanings.setdefault(live, rank.state) == rank.state
            assert live.step == len(rank.state)


generations = st.lists(
    st.tuples(
        st.integers(0, 3),  # whole steps
        st.lists(st.integers(0, 4), min_size=RANKS, max_size=RANKS),  # how far each rank comes
        st.booleans(),  # steps are skipped
    ),
    max_size=6,
)


def broken_step(ranks: list[Shell], generation: int, reaches: list[int]) -> None:
    """Ranks come unequally far in a step; one commits only if all have prepared it."""
    for rank, reach in zip(ranks, reaches, strict=True):
        if reach >= 1:
            rank.protocol.open()
        if reach >= 2:
            rank.protocol.begin(generation)
        if reach >= 3:
            rank.protocol.prepare()
            rank.result = StateKey(generation, len(rank.state) + 1)
    entries = [encode_entry(ControlEntry()) for _ in ranks]
    if min(reaches) >= 3:
        for rank, reach in zip(ranks, reaches, strict=True):
            if reach == 4:
                assert rank.protocol.judge(entries).commit
                rank.commit(skipped=False)


@given(plan=generations)
def test_a_key_names_one_state_and_no_committed_step_is_lost(
    plan: list[tuple[int, list[int], bool]],
) -> None:
    ranks = [Shell() for _ in range(RANKS)]
    for generation, (steps, reaches, skipped) in enumerate(plan, start=1):
        start = newest(ranks)
        donor = state_of(ranks, start)
        for rank in ranks:
            has = rank.protocol.can_make(start)
            rank.take_over(start, None if has else donor)
        assert {rank.protocol.live for rank in ranks} == {start}
        for _ in range(steps):
            for rank in ranks:
                rank.prepare(generation)
            entries = [rank.protocol.entry(Flags()) for rank in ranks]
            for rank in ranks:
                assert rank.protocol.judge(entries).commit
                rank.commit(skipped=skipped)
        committed = max(rank.protocol.live or FRESH for rank in ranks)
        broken_step(ranks, generation, reaches)
        for rank in ranks:
            rank.freeze()
            assert rank.protocol.live is not None
        one_meaning(ranks)
        assert newest(ranks) >= committed


@given(
    digests=st.lists(st.sampled_from([bytes(16), bytes([1] * 16)]), min_size=1, max_size=5),
)
def test_all_ranks_rule_alike_and_only_equal_digests_commit(digests: list[bytes]) -> None:
    entries = [encode_entry(ControlEntry(digest_step=1, digest=one)) for one in digests]
    for _ in digests:
        rank = Shell()
        rank.prepare(1)
        commits = rank.protocol.judge(entries).commit
        assert commits == (len(set(digests)) == 1)
        assert (rank.protocol.phase is Phase.DECIDED) == commits
        assert (rank.protocol.prepared is None) == (not commits)


# --- the coordinator's choice ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What happens to one generation and its ranks.

    Attributes:
        present: ranks that the coordinator reaches when it forms.
        new: of those, ranks whose process has died since the last one.
        hear: of those, ranks that hear of the generation; it steps only if all do.
        steps: whole steps.
        reaches: how far each rank comes in the step that breaks.
        told: the coordinator has heard of the last step that all have committed.
    """

    present: frozenset[int]
    new: frozenset[int]
    hear: frozenset[int]
    steps: int
    reaches: tuple[int, ...]
    told: bool


everybody, nobody = st.just(frozenset(range(RANKS))), st.just(frozenset[int]())
some = st.frozensets(st.integers(0, RANKS - 1))
histories = st.lists(
    st.builds(
        Generation,
        present=some.filter(bool),
        new=nobody | nobody | some,
        hear=everybody | everybody | some,
        steps=st.integers(0, 1),
        reaches=st.tuples(*[st.sampled_from([2, 3, 3, 4])] * RANKS),
        told=st.booleans(),
    ),
    min_size=2,
    max_size=5,
)


def held(live: StateKey | None) -> m.Held:
    generation, step = live or FRESH
    where = "none" if live is None else "memory"
    return m.Held(job="j", generation=generation, step=step, digest="", where=where)


def as_reported(name: int, rank: Shell, frozen_in: int) -> Worker:
    """The coordinator's record of a rank that has frozen."""
    live, prepared = rank.protocol.live, rank.protocol.prepared or rank.protocol.live or FRESH
    holdings = Holdings(held=held(live), prepared=prepared, frozen_in=frozen_in)
    return Worker(registration=registration(f"w-{name}"), holdings=holdings)


@given(history=histories)
@settings(max_examples=200)
def test_generation_starts_from_the_newest_commit_that_a_present_rank_can_make(
    history: list[Generation],
) -> None:
    ranks = [Shell() for _ in range(RANKS)]
    frozen_in, committed = [0] * RANKS, {FRESH}
    job = Job(id="j", spec={})
    for generation, plan in enumerate(history, start=1):
        for one in plan.present & plan.new:
            ranks[one].lose_memory()
        present = sorted(plan.present)
        workers = [as_reported(one, ranks[one], frozen_in[one]) for one in present]
        start = StateKey(*roster.start_key(job, workers))
        if job.generation > 1:  # one that was left out of it has no say
            apart = Holdings(held=held(FRESH), prepared=(0, 1), frozen_in=job.generation - 1)
            apart_too = [*workers, Worker(registration=registration("w-x"), holdings=apart)]
            assert roster.start_key(job, apart_too) == start
        can_make = {one for one in present if ranks[one].protocol.can_make(start)}
        for key in committed:  # by the last generation
            assert start >= key or not any(ranks[one].protocol.can_make(key) for one in present)
        holds = [one for one in present if states.has(workers[present.index(one)], start)]
        assert set(holds) == can_make
        if not holds:  # none has a state in memory: a fresh one is built
            return
        donor = state_of([ranks[one] for one in holds], start)
        assert donor is not None
        hear = [one for one in present if one in plan.hear]
        for one in hear:
            ranks[one].take_over(start, None if one in holds else donor)
            frozen_in[one] = generation
        job = replace(job, generation=generation, start_generation=start.generation)
        job = replace(job, start_step=start.step, step=start.step)
        members, committed = [ranks[one] for one in hear], {start}
        if hear == present:
            committed |= whole_steps(members, generation, plan.steps)
            job.step = max(committed).step if plan.told else start.step
            broken_step(members, generation, [plan.reaches[one] for one in hear])
            committed |= {rank.protocol.live for rank in members if rank.protocol.live}
        for rank in members:
            rank.freeze()
        one_meaning(ranks)


def whole_steps(ranks: list[Shell], generation: int, steps: int) -> set[StateKey]:
    """All ranks commit some steps; returns the keys of the states."""
    committed = set()
    for _ in range(steps):
        for rank in ranks:
            rank.prepare(generation)
            rank.protocol.judge([encode_entry(ControlEntry()) for _ in ranks])
            rank.commit(skipped=False)
            committed.add(rank.protocol.live or FRESH)
    return committed


keys = st.builds(StateKey, st.integers(1, 3), st.integers(0, 3))


@given(live=keys, prepared=st.booleans(), start=keys)
def test_what_is_taken_over_from_memory_is_the_start(
    live: StateKey, prepared: bool, start: StateKey
) -> None:
    protocol = StepProtocol()
    protocol.replaced(live)
    if prepared:
        protocol.begin(live.generation + 1)
        protocol.prepare()
    way = protocol.take_over(start)
    if way is TakeOver.COMMIT:
        assert protocol.commit() == start
    elif way is TakeOver.KEEP:
        protocol.discard()
        assert protocol.live == start
