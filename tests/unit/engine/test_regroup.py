"""A sharded state gets other owners: all that is missing moves, once, and no further."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.engine.digests import Shared
from dtd.engine.regroup import RegroupPlan, plan_regroup
from dtd.engine.shards import NOTHING, WHOLE, ShardSet, united
from dtd.errors import ShardsMissing
from dtd.exchange.schedule.chunks import BucketShape, Operation, cut
from tests.shards import held_shards

MISSING = -1


def divided(world_size: int, mirrors: int = 1) -> list[ShardSet]:
    """The holdings of the ranks of a world."""
    return [held_shards(rank, world_size, mirrors) for rank in range(world_size)]


def part(*bounds: tuple[int, int], of: int) -> ShardSet:
    return ShardSet.of((Fraction(start, of), Fraction(stop, of)) for start, stop in bounds)


def all_gathered(buffers: list[list[int]], shape: BucketShape) -> int:
    """Exchange the ranks' buffers as the ring does; returns how many elements all links carry."""
    ranks, carried = len(buffers), 0
    segments = cut(shape, world_size=ranks, chunk_bytes=4)
    contributed = [list(buffer) for buffer in buffers]
    for rank in range(ranks):
        start, stop = segments.own(rank)
        for hop in range(len(shape.window(ranks))):
            buffers[(rank + hop + 1) % ranks][start:stop] = contributed[rank][start:stop]
            carried += stop - start
    return carried


def regrouped(held: Sequence[ShardSet], wanted: Sequence[ShardSet], elements: int) -> int:
    """Move one flat bucket, in which each element is its own index.

    Checks that all ranks have in the end what they want; returns how many elements were carried.
    """
    flats = [filled(one, elements) for one in held]
    carried = 0
    for window in (plan := plan_regroup(held, wanted)).windows:
        bounds = window.bounds(elements)
        buffers = [[MISSING] * bounds[-1] for _ in held]
        for rank, buffer in enumerate(buffers):
            for piece in window.gives(rank, elements):
                given = flats[rank][piece.start : piece.stop]
                assert MISSING not in given, "given by a rank that does not hold it"
                buffer[piece.at : piece.at + len(given)] = given
        shape = BucketShape(
            elements=bounds[-1],
            item_bytes=4,
            operation=Operation.ALL_GATHER,
            hops=window.hops,
            bounds=bounds,
        )
        carried += all_gathered(buffers, shape)
        for rank, buffer in enumerate(buffers):
            for piece in window.takes(rank, elements):
                size = piece.stop - piece.start
                assert set(flats[rank][piece.start : piece.stop]) == {MISSING}, "taken twice"
                flats[rank][piece.start : piece.stop] = buffer[piece.at : piece.at + size]
    for flat, before, after in zip(flats, held, wanted, strict=True):
        assert flat == filled(before | after, elements)
    assert carried == sum(one.hops * one.bounds(elements)[-1] for one in plan.windows)
    return carried


def filled(held: ShardSet, elements: int) -> list[int]:
    flat = [MISSING] * elements
    for start, stop in held.ranges(elements):
        flat[start:stop] = range(start, stop)
    return flat


def fewest(held: Sequence[ShardSet], wanted: Sequence[ShardSet], elements: int) -> int:
    """How many elements the links must carry at least.

    The link into a rank carries an element that the rank does not hold and that is wanted there, or
    further on before the next rank that holds it: it cannot come from the other side.
    """
    ranks, links = len(held), 0
    has = [[value != MISSING for value in filled(one, elements)] for one in held]
    wants = [[value != MISSING for value in filled(one, elements)] for one in wanted]
    for element in range(elements):
        for rank in range(ranks):
            distance = 0
            while distance < ranks and not has[(rank + distance) % ranks][element]:
                if wants[(rank + distance) % ranks][element]:
                    links += 1
                    break
                distance += 1
    return links


def check_shared(plan: RegroupPlan, held: Sequence[ShardSet]) -> None:
    """All that travels and that several ranks hold is compared, once, among just those ranks."""
    moves = united(plan.taken(rank) for rank in range(len(held)))
    left = moves
    for one in plan.shared:
        assert len(one.holders) > 1
        assert left.covers(one.part)
        left = left - one.part
        for rank, had in enumerate(held):
            assert had & one.part == (one.part if rank in one.holders else NOTHING)
    assert not any(left & one & other for one, other in combinations(held, 2))


# --- changes of membership -----------------------------------------------------------------------

ELEMENTS = 1200


def test_a_lost_ranks_segment_comes_from_its_mirror() -> None:
    """The last of four ranks is lost; the others become three, as in protocol.md."""
    held, wanted = divided(4)[:3], divided(3)
    plan = plan_regroup(held, wanted)
    assert [str(plan.taken(rank)) for rank in range(3)] == ["1/2 to 2/3", "3/4 to 1", "0 to 1/3"]
    near, far = plan.windows
    assert (near.hops, far.hops) == (1, 2)
    assert near.taken == (((2, part((3, 4), of=6)),), (), ((1, part((3, 4), of=12)),))
    assert far.taken == ((), ((2, part((3, 4), of=4)),), ((0, part((0, 1), of=4)),))
    assert (
        regrouped(held, wanted, ELEMENTS)
        == fewest(held, wanted, ELEMENTS)
        == (1 * 200) + (2 * 300) + (1 * 100 + 2 * 300)
    )


def test_a_part_that_nobody_holds_is_named() -> None:
    held = [part((0, 1), of=4), part((2, 4), of=4), NOTHING]
    with pytest.raises(ShardsMissing, match="1/4 to 1/2 of 0 to 1 is held by no member"):
        plan_regroup(held, divided(3))
    assert plan_regroup(held, [NOTHING, NOTHING, part((3, 4), of=4)]).windows


def test_what_travels_and_several_hold_is_compared_before() -> None:
    """The last of four ranks is lost: two parts that travel have two holders left."""
    plan = plan_regroup(divided(4)[:3], divided(3))
    assert plan.shared == (
        Shared(part=part((3, 4), of=12), holders=(0, 1)),
        Shared(part=part((6, 8), of=12), holders=(1, 2)),
    )
    assert plan_regroup(divided(4, 0), [*divided(5, 0)[:4], NOTHING]).shared == ()


# --- any change ----------------------------------------------------------------------------------

sets = st.builds(
    lambda intervals: ShardSet.of(
        (Fraction(min(pair), 12), Fraction(max(pair), 12)) for pair in intervals
    ),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=3),
)
elements_of_a_bucket = st.one_of(st.integers(0, 9), st.integers(10, 60))


@given(
    before=st.integers(1, 8),
    mirrors=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    order=st.randoms(use_true_random=False),
    lost=st.integers(0, 7),
    joined=st.integers(0, 4),
    elements=elements_of_a_bucket,
)
def test_any_change_of_members_carries_no_element_further_than_it_must(
    before: int,
    mirrors: tuple[int, int],
    order: Random,
    lost: int,
    joined: int,
    elements: int,
) -> None:
    """Members in another order, joiners with nothing, and another number of mirrors."""
    held = [*divided(before, mirrors[0]), *[NOTHING] * joined]
    order.shuffle(held)
    if lost <= mirrors[0] and len(held) > 1:
        del held[0]
    wanted = divided(len(held), mirrors[1])
    if not ShardSet.of(i for one in held for i in one.intervals).is_whole:
        with pytest.raises(ShardsMissing):
            plan_regroup(held, wanted)
        return
    assert regrouped(held, wanted, elements) == fewest(held, wanted, elements)


@given(
    parts=st.lists(st.tuples(sets, sets), min_size=1, max_size=6),
    elements=elements_of_a_bucket,
    data=st.data(),
)
def test_any_parts_reach_those_that_want_them(
    parts: list[tuple[ShardSet, ShardSet]], elements: int, data: st.DataObject
) -> None:
    held, wanted = [one for one, _ in parts], [other for _, other in parts]
    whole = data.draw(st.integers(0, len(parts) - 1))
    held[whole] = WHOLE
    assert regrouped(held, wanted, elements) == fewest(held, wanted, elements)
    plan = plan_regroup(held, wanted)
    check_shared(plan, held)
    distances = [window.hops for window in plan.windows]
    assert distances == sorted(set(distances))
    assert all(0 < hops < len(held) for hops in distances)
    for rank, (before, after) in enumerate(zip(held, wanted, strict=True)):
        assert plan.taken(rank) == after - before
