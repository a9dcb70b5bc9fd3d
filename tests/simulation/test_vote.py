"""The vote of many ranks in virtual time: as many hops as the tree has, whatever the ring has."""

from __future__ import annotations

import math

import pytest

from dtd.exchange.schedule.effects import (
    Effect,
    GatherDone,
    SendGather,
)
from dtd.exchange.schedule.machine import Machine
from dtd.exchange.schedule.schedules import RingSchedules
from tests.sim.scheduler import Scheduler

HOP_S = 0.5e-3


def vote_s(world_size: int, strides: tuple[int, ...] = ()) -> float:
    """When the last rank has all entries, if all offer theirs at 0."""
    scheduler = Scheduler()
    machines = [
        Machine(
            RingSchedules(rank, world_size, chunk_bytes=16, whole_bytes=16, strides=strides),
            generation=1,
            first_step=0,
            scratch_slots=1,
        )
        for rank in range(world_size)
    ]
    done_s: list[float] = []

    def perform(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendGather):
                scheduler.after(HOP_S, lambda sent=effect: arrive(sent))
            else:
                assert effect == GatherDone(sequence=0)
                done_s.append(scheduler.now)

    def arrive(sent: SendGather) -> None:
        machine = machines[sent.rank]
        assert machine.accept_gather(sent.gather, link=sent.gather.source) is None
        perform(machine.gather_received(sent.gather))

    for machine in machines:
        machine.open_step(0, ())
    for machine in machines:
        perform(machine.offer_gather())
    scheduler.run(until_s=1.0, done=lambda: len(done_s) == world_size)
    assert len(done_s) == world_size
    return done_s[-1]


@pytest.mark.parametrize("world_size", [2, 3, 6, 7, 8, 33, 64, 130])
def test_a_vote_takes_as_many_hops_as_the_binary_logarithm_of_the_ranks(world_size: int) -> None:
    assert vote_s(world_size) <= math.ceil(math.log2(world_size)) * HOP_S * 1.001


def test_the_vote_of_sixty_four_takes_six_hops_and_around_the_ring_sixty_three() -> None:
    assert vote_s(64) == pytest.approx(6 * HOP_S)
    assert vote_s(64, strides=(1,)) == pytest.approx(63 * HOP_S)


def test_a_bad_link_costs_the_vote_few_hops() -> None:
    """Without one of the strides the one before it is taken twice or thrice."""
    without_one = vote_s(64, strides=(1, 2, 4, 8, 32))
    assert 6 * HOP_S < without_one <= 8.001 * HOP_S
