"""The step protocol of several ranks, through any order of steps, breaks and generations.

What is played here is the least that a shell does: a rank's state is the list of what was applied
to it.  Whatever happens, a state has one meaning: ranks that name a key hold the same list.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dtd.engine.control_word import ControlEntry, Flags, encode_entry
from dtd.engine.step_protocol import FRESH, Phase, StateKey, StepProtocol, TakeOver

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
        way = self.protocol.take_over(start, holds=donor is None)
        if way is TakeOver.COMMIT:
            self.commit(skipped=False)
            return
        self.discard()
        if way is not TakeOver.KEEP:
            assert way is TakeOver.FETCH, "nothing here lies on disks"
            assert donor is not None
            self.protocol.replace()
            self.state = donor
            self.protocol.replaced(start)


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
