"""Where rounds begin and end: a fixed grid over a job's steps."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dtd.engine.rounds import Rounds
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
