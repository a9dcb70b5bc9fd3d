"""Any order of steps, their ends and new states: what a rank keeps is what commits have left."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from dtd.strategy.codec.api import LocalState, ResidualHandoff

CPU = torch.device("cpu")
STEP = st.tuples(st.sampled_from(["commit", "rollback", "unwritten"]), st.integers(0, 3))


@given(st.lists(st.one_of(STEP, st.just("reset"), st.just("add")), max_size=16))
def test_it_is_what_the_commits_since_the_last_state_add_up_to(plan) -> None:
    """Each step keeps twice what was kept and one more, in units of a loss scale that varies."""
    state, kept = LocalState(3, CPU), 0.0
    for act in plan:
        if act == "reset":
            state.reset()
            kept = 0.0
        elif act == "add":
            state.add(torch.full((3,), 5.0))
            kept += 5.0
        else:
            end, power = act
            scale = 2.0**power
            state.begin(scale)
            if end != "unwritten":
                new = torch.add(2 * state.current, scale, out=state.new())
                assert new is not state.current
            assert state.unscaled().tolist() == [kept] * 3
            if end == "rollback":
                state.rollback()
            state.commit()
            kept = 2 * kept + 1 if end == "commit" else kept
        assert state.unscaled().tolist() == [kept] * 3


RANK = st.tuples(st.booleans(), st.integers(-8, 8))


@given(st.lists(RANK, min_size=1, max_size=5).filter(lambda all_: not all(one for one, _ in all_)))
def test_what_leavers_have_not_sent_is_divided_among_those_that_stay(ranks) -> None:
    states = [LocalState(3, CPU) for _ in ranks]
    for state, (_, kept) in zip(states, ranks, strict=True):
        state.add(torch.full((3,), float(kept)))
    handoffs = [
        ResidualHandoff([state], leaves=leaves)
        for state, (leaves, _) in zip(states, ranks, strict=True)
    ]
    flats = [torch.frombuffer(one.memories[0].view, dtype=torch.float32) for one in handoffs]
    total = torch.stack(flats).sum(0)
    for flat in flats:
        flat.copy_(total)
    for handoff in handoffs:
        handoff.finish()
    left = sum(kept for leaves, kept in ranks if leaves)
    stay = sum(not leaves for leaves, _ in ranks)
    for state, (leaves, kept) in zip(states, ranks, strict=True):
        expected = torch.full((3,), 0.0 if leaves else kept + left / stay)
        torch.testing.assert_close(state.unscaled(), expected)
