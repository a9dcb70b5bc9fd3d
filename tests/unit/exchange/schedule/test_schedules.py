"""Schedules as data: the tables of protocol.md, and that what one rank sends another expects."""

from __future__ import annotations

import pytest

from dtd.exchange.schedule.chunks import BucketShape, Operation
from dtd.exchange.schedule.schedules import (
    RingSchedules,
    Schedule,
    StarSchedules,
    Transfer,
)
from dtd.wire.messages import Phase

SCATTER, GATHER = Phase.REDUCE_SCATTER, Phase.ALL_GATHER
PUSH, SUMMED, PULL = Phase.PUSH, Phase.SUMMED, Phase.PULL


def shape_of(operation: Operation, **parameters: object) -> BucketShape:
    return BucketShape(elements=24, item_bytes=4, operation=operation, **parameters)


def of_ring(rank: int, world_size: int, shape: BucketShape, *, whole: bool = False) -> Schedule:
    return RingSchedules(rank, world_size, chunk_bytes=8, whole_bytes=8).of(shape, whole=whole)[0]


def of_star(rank: int, trainers: int, servers: int, shape: BucketShape) -> Schedule:
    schedules = StarSchedules(rank, trainers + servers, servers=servers, chunk_bytes=8)
    return schedules.of(shape, whole=False)[0]


def sent(schedule: Schedule) -> list[Transfer]:
    """All that a rank sends, with what it passes on."""
    return [*schedule.sends, *(one for arrival in schedule.arrivals for one in arrival.onward)]


def segments_sent(schedule: Schedule) -> dict[Phase, list[int]]:
    """The segments sent in each phase, by hop."""
    phases: dict[Phase, list[int]] = {}
    for one in sorted(sent(schedule), key=lambda one: (one.phase, one.hop)):
        phases.setdefault(one.phase, []).append(one.segment)
    return phases


# --- ring ----------------------------------------------------------------------------------------

# protocol.md: which segment rank r of four sends in the hops of phase 0, then of phase 1.
ALL_REDUCE = {
    0: ([0, 3, 2], [1, 0, 3]),
    1: ([1, 0, 3], [2, 1, 0]),
    2: ([2, 1, 0], [3, 2, 1]),
    3: ([3, 2, 1], [0, 3, 2]),
}
# The same for halves with one copy: reduce-scatter phases 0 and 1, all-gather phase 1.
HALVES = {
    0: ([0, 3, 2], [1], [0, 3]),
    1: ([1, 0, 3], [2], [1, 0]),
    2: ([2, 1, 0], [3], [2, 1]),
    3: ([3, 2, 1], [0], [3, 2]),
}


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("operation", [Operation.SUM, Operation.MAXIMUM])
def test_an_all_reduce_of_four_ranks(rank: int, operation: Operation) -> None:
    schedule = of_ring(rank, 4, shape_of(operation))
    scatter, gather = ALL_REDUCE[rank]
    assert segments_sent(schedule) == {SCATTER: scatter, GATHER: gather}
    assert [one.adds for one in schedule.arrivals] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("rank", range(4))
def test_halves_of_four_ranks(rank: int) -> None:
    scatter, copied, gather = HALVES[rank]
    schedule = of_ring(rank, 4, shape_of(Operation.REDUCE_SCATTER, copies=1))
    assert segments_sent(schedule) == {SCATTER: scatter, GATHER: copied}
    schedule = of_ring(rank, 4, shape_of(Operation.ALL_GATHER, copies=1))
    assert segments_sent(schedule) == {GATHER: gather}
    schedule = of_ring(rank, 4, shape_of(Operation.ALL_GATHER, copies=1, hops=2))
    assert segments_sent(schedule) == {GATHER: gather[:1]}


@pytest.mark.parametrize("world_size", range(2, 6))
def test_a_bucket_that_travels_whole(world_size: int) -> None:
    for rank in range(world_size):
        schedule = of_ring(rank, world_size, shape_of(Operation.SUM), whole=True)
        assert schedule.whole
        origins = [(rank - 1 - hop) % world_size for hop in range(world_size - 1)]
        assert [one.segment for one in schedule.arrivals] == origins
        assert len(sent(schedule)) == world_size - 1


# --- star ----------------------------------------------------------------------------------------


def test_the_star_of_two_trainers_and_two_servers() -> None:
    """The table of protocol.md: a reduce-scatter with one mirror, then an all-gather with one."""
    scatter, gather = (
        shape_of(operation, copies=1)
        for operation in (Operation.REDUCE_SCATTER, Operation.ALL_GATHER)
    )
    moved = {
        rank: [
            (one.phase, one.segment, one.peer)
            for shape in (scatter, gather)
            for one in sent(of_star(rank, 2, 2, shape))
        ]
        for rank in range(4)
    }
    assert moved == {
        0: [(PUSH, 0, 2), (PUSH, 1, 3)],
        1: [(PUSH, 0, 2), (PUSH, 1, 3)],
        2: [(SUMMED, 0, 3), (PULL, 0, 0), (PULL, 0, 1)],
        3: [(SUMMED, 1, 2), (PULL, 1, 0), (PULL, 1, 1)],
    }


def test_a_server_adds_contributions_in_rank_order() -> None:
    arrivals = of_star(3, 3, 2, shape_of(Operation.REDUCE_SCATTER)).arrivals
    assert [(one.peer, one.adds, one.after) for one in arrivals] == [
        (0, False, None),
        (1, True, 0),
        (2, True, 1),
    ]


# --- every schedule ------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", range(2, 7))
@pytest.mark.parametrize("copies", range(4))
@pytest.mark.parametrize("operation", Operation)
def test_what_one_rank_sends_another_expects(
    world_size: int, copies: int, operation: Operation
) -> None:
    shape = shape_of(operation, copies=copies if operation.is_half else 0)
    worlds = [[of_ring(rank, world_size, shape) for rank in range(world_size)]]
    if operation.is_half:
        for servers in range(1, world_size):
            trainers = world_size - servers
            ranks = range(world_size)
            worlds.append([of_star(rank, trainers, servers, shape) for rank in ranks])
    else:
        worlds.append([of_ring(rank, world_size, shape, whole=True) for rank in range(world_size)])
    for schedules in worlds:
        moved = sorted(
            (rank, one.peer, one.phase, one.hop, one.segment)
            for rank, schedule in enumerate(schedules)
            for one in sent(schedule)
        )
        expected = sorted(
            (one.peer, rank, one.phase, one.hop, one.segment)
            for rank, schedule in enumerate(schedules)
            for one in schedule.arrivals
        )
        assert moved == expected
