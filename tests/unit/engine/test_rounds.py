"""Where rounds begin and end: a fixed grid over a job's steps."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dtd.engine.rounds import Rounds
from dtd.engine.step_protocol import FRESH, StateKey, StepProtocol
from dtd.job import StrategyTable

GRIDS = {
    "one step each": (Rounds(), [0, 1, 2, 3]),
    "four": (Rounds(inner_steps=4, longest=4), [0, 4, 8, 12]),
    "post-local": (Rounds(inner_steps=4, start_step=3, longest=4), [0, 1, 2, 3, 7, 11]),
    "doubling": (
        Rounds(inner_steps=3, start_step=5, double_every=10, longest=7),
        [*range(6), 8, 11, 14, 15, 21, 25, 32, 39, 46],
    ),
    "doubling to a power": (
        Rounds(inner_steps=2, double_every=4, longest=8),
        [0, 2, 4, 8, 16, 24],
    ),
}


@pytest.mark.parametrize("name", GRIDS)
def test_rounds_follow_one_another(name) -> None:
    rounds, points = GRIDS[name]
    for begin, end in itertools.pairwise(points):
        assert rounds.end(begin) == end
        assert rounds.begin(end) == begin
        assert {rounds.end(step) for step in range(begin, end)} == {end}, "off the grid: up to it"


def test_no_round_ends_with_the_fresh_state() -> None:
    assert [rounds.begin(0) < 0 for rounds, _ in GRIDS.values()] == [True] * len(GRIDS)


def test_the_last_round_ends_with_the_job() -> None:
    rounds = Rounds(inner_steps=4, longest=4)
    assert rounds.end(8, 10) == 10
    assert rounds.end(8, 12) == 12
    assert rounds.begin(10) == 8
    assert rounds.end(8) == 12, "the end of the job is not known"


def test_a_multiple_within_a_round_is_crossed_at_its_end() -> None:
    rounds = Rounds(inner_steps=4, longest=4)
    crossed = [step for step in range(0, 25, 4) if rounds.crossed(step, 6)]
    assert crossed == [8, 12, 20, 24]
    assert [step for step in range(7) if Rounds().crossed(step, 3)] == [3, 6]


def test_the_tables_of_jobs() -> None:
    table = StrategyTable(
        name="diloco",
        inner_steps=3,
        local_start_step=5,
        inner_steps_double_every=10,
        inner_steps_max=7,
    )
    assert Rounds.of(table) == GRIDS["doubling"][0]
    assert Rounds.of(replace(table, name="replicated")) == Rounds.of(StrategyTable()) == Rounds()
    assert Rounds.of(replace(table, name="local_sgd", inner_steps_max=0)).longest == 3
    streaming = StrategyTable(name="streaming_diloco", inner_steps=12, fragments=4)
    assert Rounds.of(streaming) == Rounds(inner_steps=3, longest=3)
    later = replace(streaming, fragments=24)  # of a release that allows it
    assert Rounds.of(later) == Rounds()


def test_a_round_of_steps_is_committed_as_a_whole() -> None:
    protocol = StepProtocol()
    protocol.replace()
    protocol.replaced(FRESH)
    protocol.begin(2, steps=4)
    assert protocol.prepared is None
    protocol.prepare()
    assert protocol.prepared == StateKey(2, 4)
    protocol.take_over(StateKey(2, 4))
    assert protocol.commit() == StateKey(2, 4)
    protocol.begin(2)
    protocol.prepare()
    assert protocol.prepared == StateKey(2, 5)
