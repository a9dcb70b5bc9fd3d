"""Trees: every rank is reached once, from every other, in few hops."""

from __future__ import annotations

import pytest

from dtd.errors import LocalProtocolError
from dtd.exchange.schedule.tree import Tree, most_hops, powers_of_two


def hops_to(world_size: int, strides: tuple[int, ...], origin: int) -> dict[int, int]:
    """For every rank that something of `origin` reaches, in how many hops; each is reached once."""
    trees = [Tree(rank, world_size, strides) for rank in range(world_size)]
    hops, ahead = {origin: 0}, [origin]
    while ahead:
        rank = ahead.pop(0)
        for to, distance in trees[rank].onward(origin):
            assert to not in hops
            assert trees[to].source(origin) == rank
            assert trees[to].distance(origin) == distance
            assert (to - rank) % world_size in trees[rank].strides
            hops[to] = hops[rank] + 1
            ahead.append(to)
    return hops


@pytest.mark.parametrize("world_size", [*range(1, 36), 63, 64, 65, 127, 128, 129])
def test_all_ranks_are_reached_in_as_many_hops_as_the_logarithm(world_size: int) -> None:
    for origin in {0, world_size // 2, world_size - 1}:
        hops = hops_to(world_size, (), origin)
        assert sorted(hops) == list(range(world_size))
        assert max(hops.values()) == most_hops(world_size)
    assert most_hops(world_size) <= (world_size - 1).bit_length()


def test_the_hops_of_64_and_of_a_ring() -> None:
    assert max(hops_to(64, (), 5).values()) == 6
    assert max(hops_to(64, (1,), 5).values()) == 63
    assert max(hops_to(64, (1, 2, 8, 16, 32), 5).values()) == 7  # one link in eleven is bad
    assert powers_of_two(64) == (1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize("strides", [(1,), (1, 3), (1, 2, 7), (1, 4, 8), (1, 2, 3, 5, 8)])
@pytest.mark.parametrize("world_size", [9, 12, 17])
def test_any_strides_reach_all_ranks(world_size: int, strides: tuple[int, ...]) -> None:
    for origin in range(world_size):
        assert len(hops_to(world_size, strides, origin)) == world_size


@pytest.mark.parametrize("world_size", range(1, 40))
def test_every_rank_sends_as_often_as_there_are_others(world_size: int) -> None:
    tree = Tree(0, world_size)
    assert sum(len(tree.onward(origin)) for origin in range(world_size)) == world_size - 1


@pytest.mark.parametrize("strides", [(2,), (1, 1), (2, 1), (1, 8), (0, 1)])
def test_strides_that_are_none(strides: tuple[int, ...]) -> None:
    with pytest.raises(LocalProtocolError, match="a ring of 8 ranks has strides"):
        Tree(0, 8, strides)
