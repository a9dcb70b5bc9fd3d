from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dtd.engine.sampler import Position, advance, permuted_row, slice_bounds
from dtd.train.data.sampling import batch_rows, ordered_rows

seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 10_000)


@given(seed=seeds, length=st.integers(1, 2**48), place=st.integers(0))
def test_a_row_of_any_dataset_is_inside_it(seed: int, length: int, place: int) -> None:
    assert 0 <= permuted_row(seed, 0, place % length, length) < length


@given(rows=st.integers(0, 5000), world_size=st.integers(1, 70))
def test_slices_partition_a_batch_evenly(rows: int, world_size: int) -> None:
    bounds = [slice_bounds(rows, world_size, rank) for rank in range(world_size)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == rows
    assert all(left[1] == right[0] for left, right in pairwise(bounds))
    sizes = [stop - start for start, stop in bounds]
    assert max(sizes) - min(sizes) <= 1


@given(
    seed=seeds,
    length=st.integers(1, 400),
    global_batch_size=st.integers(1, 90),
    world_sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
)
def test_two_epochs_visit_each_row_twice_whatever_the_world_size_becomes(
    seed: int, length: int, global_batch_size: int, world_sizes: list[int]
) -> None:
    used: list[list[int]] = [[], []]
    position, step = Position(0, 0), 0
    while position.epoch < 2:
        batch = batch_rows(
            seed=seed, position=position, global_batch_size=global_batch_size, length=length
        )
        world_size = world_sizes[step % len(world_sizes)]
        slices = [slice_bounds(len(batch), world_size, rank) for rank in range(world_size)]
        used[position.epoch] += [row for start, stop in slices for row in batch[start:stop]]
        position, step = advance(position, len(batch), length), step + 1
    assert sorted(used[0]) == sorted(used[1]) == list(range(length))


@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    epoch=epochs,
    length=st.one_of(st.integers(1, 700), st.integers(1, 2**48)),
    start=st.integers(0),
    count=st.integers(0, 50),
)
def test_many_places_at_once_are_the_same_rows(seed, epoch, length, start, count) -> None:
    start %= length
    stop = min(start + count, length)
    one_by_one = [permuted_row(seed, epoch, place, length) for place in range(start, stop)]
    assert ordered_rows(seed, epoch, start, stop, length).tolist() == one_by_one
