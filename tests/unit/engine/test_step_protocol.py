"""The step protocol: what is live, what is prepared, who may commit what."""

from __future__ import annotations

import pytest

from dtd.engine.control_word import ControlEntry, Flags, encode_entry
from dtd.engine.step_protocol import (
    FRESH,
    Phase,
    Reaction,
    Report,
    StateKey,
    StepProtocol,
    TakeOver,
    reaction,
)
from dtd.errors import LocalProtocolError

GENERATION = 4
LIVE = StateKey(3, 7)
NEXT = StateKey(GENERATION, 8)
QUIET = encode_entry(ControlEntry())
A, B = bytes(16), bytes([1] * 16)


def in_phase(phase: Phase) -> StepProtocol:
    """A protocol that has come to a phase, from LIVE, in GENERATION."""
    protocol = StepProtocol()
    steps = [
        (Phase.HELD, lambda: protocol.replaced(LIVE)),
        (Phase.OPEN, protocol.open),
        (Phase.COMPUTING, lambda: protocol.begin(GENERATION)),
        (Phase.PREPARED, protocol.prepare),
        (Phase.DECIDED, lambda: protocol.judge([QUIET])),
        (Phase.APPLYING, protocol.apply),
    ]
    for reached, go in steps:
        if protocol.phase is phase:
            break
        go()
        assert protocol.phase is reached
    return protocol


ALL = list(Phase)
RESULTS = [Phase.PREPARED, Phase.DECIDED]
NAMED = [phase for phase in ALL if phase not in (Phase.EMPTY, Phase.APPLYING)]


# --- what is reported ------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ALL)
def test_report_names_the_last_committed_state_and_the_prepared_one(phase: Phase) -> None:
    protocol = in_phase(phase)
    live = LIVE if phase in NAMED else None
    prepared = NEXT if phase in RESULTS else None
    assert protocol.report() == Report(live=live, prepared=prepared)
    assert protocol.can_make(LIVE) == (phase in NAMED)
    assert protocol.can_make(NEXT) == (phase in RESULTS)


# --- the order of a step ---------------------------------------------------------------------

ALLOWED = {
    "open": {Phase.HELD},
    "begin": {Phase.HELD, Phase.OPEN},
    "prepare": {Phase.COMPUTING},
    "entry": {Phase.PREPARED},
    "judge": {Phase.PREPARED},
    "apply": {Phase.DECIDED},
    "commit": {Phase.DECIDED, Phase.APPLYING},
    "replace": {Phase.EMPTY, Phase.HELD},
    "replaced": {Phase.EMPTY},
}
CALLS = {
    "open": lambda protocol: protocol.open(),
    "begin": lambda protocol: protocol.begin(GENERATION),
    "prepare": lambda protocol: protocol.prepare(),
    "entry": lambda protocol: protocol.entry(Flags()),
    "judge": lambda protocol: protocol.judge([QUIET]),
    "apply": lambda protocol: protocol.apply(),
    "commit": lambda protocol: protocol.commit(),
    "replace": lambda protocol: protocol.replace(),
    "replaced": lambda protocol: protocol.replaced(LIVE),
}


@pytest.mark.parametrize("phase", ALL)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_refused_out_of_order(call: str, phase: Phase) -> None:
    protocol = in_phase(phase)
    if phase in ALLOWED[call]:
        CALLS[call](protocol)
        return
    before = protocol.report()
    with pytest.raises(LocalProtocolError, match=rf"{call}\(\) in phase {phase.value}"):
        CALLS[call](protocol)
    assert (protocol.phase, protocol.report()) == (phase, before)


# --- the vote --------------------------------------------------------------------------------


# --- discarding ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "undoes", "after"),
    [
        (Phase.EMPTY, False, Phase.EMPTY),
        (Phase.HELD, False, Phase.HELD),
        (Phase.OPEN, False, Phase.HELD),
        (Phase.COMPUTING, True, Phase.HELD),
        (Phase.PREPARED, True, Phase.HELD),
        (Phase.DECIDED, True, Phase.HELD),
        (Phase.APPLYING, True, Phase.EMPTY),
    ],
)
def test_a_discarded_step_leaves_the_live_state(phase: Phase, undoes: bool, after: Phase) -> None:
    protocol = in_phase(phase)
    assert protocol.discard() is undoes
    assert protocol.phase is after
    assert protocol.live == (LIVE if after is Phase.HELD else None)


@pytest.mark.parametrize("phase", ALL)
def test_complete_results_outlive_a_broken_ring(phase: Phase) -> None:
    keeps = {*RESULTS, Phase.APPLYING}
    assert in_phase(phase).interrupted() == (phase not in keeps)


@pytest.mark.parametrize("phase", [p for p in ALL if p is not Phase.APPLYING])
def test_what_is_forgotten_is_named_no_more(phase: Phase) -> None:
    protocol = in_phase(phase)
    protocol.discard()
    protocol.forget()
    assert protocol.report() == Report(live=None, prepared=None)
    assert protocol.take_over(LIVE) is TakeOver.LOAD


# --- taking over -----------------------------------------------------------------------------


@pytest.mark.parametrize("phase", RESULTS)
def test_the_prepared_step_is_committed_if_the_generation_starts_from_it(phase: Phase) -> None:
    protocol = in_phase(phase)
    assert protocol.take_over(NEXT) is TakeOver.COMMIT
    protocol.apply()
    assert protocol.commit() == NEXT


@pytest.mark.parametrize("phase", RESULTS)
@pytest.mark.parametrize(
    ("start", "way"),
    [
        (LIVE, TakeOver.KEEP),
        (StateKey(2, 5), TakeOver.LOAD),
        (FRESH, TakeOver.RESET),
        (StateKey(GENERATION + 1, NEXT.step), TakeOver.LOAD),
    ],
)
def test_a_prepared_step_that_is_not_the_start_counts_no_more(
    phase: Phase, start: StateKey, way: TakeOver
) -> None:
    protocol = in_phase(phase)
    assert protocol.take_over(start) is way
    assert protocol.report() == Report(live=LIVE, prepared=None)
    assert protocol.discard(), "the shell has the step's changes to undo"


def test_what_was_built_is_the_fresh_state_until_something_changes_it() -> None:
    protocol = StepProtocol()
    assert protocol.take_over(FRESH) is TakeOver.AS_BUILT
    protocol.replaced(FRESH)
    assert protocol.take_over(FRESH) is TakeOver.KEEP
    protocol.forget()
    assert protocol.take_over(FRESH) is TakeOver.AS_BUILT


@pytest.mark.parametrize("change", ["open", "begin", "replace"])
def test_what_has_been_trained_or_overwritten_is_as_built_no_more(change: str) -> None:
    protocol = StepProtocol()
    protocol.replaced(FRESH)
    CALLS[change](protocol)
    protocol.discard()
    protocol.forget()
    assert protocol.take_over(FRESH) is TakeOver.RESET
    protocol.replaced(FRESH)
    protocol.forget()
    assert protocol.take_over(FRESH) is TakeOver.AS_BUILT


# --- divergence ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "step", "dissenters", "majority", "expected"),
    [
        (0, 3, (1,), True, Reaction.KEEP),
        (1, 3, (1,), True, Reaction.START_AFRESH),
        (0, 3, (1,), False, Reaction.FORGET),
        (1, 3, (1,), False, Reaction.FORGET),
        (0, 0, (1,), True, Reaction.REBUILD),
        (1, 0, (1,), True, Reaction.START_AFRESH),
    ],
)
def test_only_a_majority_of_trained_states_is_kept(
    rank: int, step: int, dissenters: tuple[int, ...], majority: bool, expected: Reaction
) -> None:
    assert reaction(rank, step=step, dissenters=dissenters, majority=majority) is expected
