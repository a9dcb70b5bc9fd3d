"""The bucket plan: who lies where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.exchange.schedule.buckets import ParameterShape, plan_buckets


def shape(name: str, elements: int, dtype: str = "float32", item_bytes: int = 4) -> ParameterShape:
    return ParameterShape(name=name, elements=elements, item_bytes=item_bytes, dtype=dtype)


def members(plan) -> list[list[int]]:
    return [[place.parameter for place in bucket.places] for bucket in plan.buckets]


def test_reverse_order_with_a_small_first_bucket() -> None:
    shapes = [shape(name, 10) for name in "abcdef"]
    plan = plan_buckets(shapes, bucket_bytes=120, first_bucket_bytes=40)
    assert members(plan) == [[5], [4, 3, 2], [1, 0]]
    assert [bucket.elements for bucket in plan.buckets] == [10, 30, 20]
    assert [(p.start, p.stop) for p in plan.buckets[1].places] == [(0, 10), (10, 20), (20, 30)]


def test_a_large_parameter_travels_with_the_little_that_came_before() -> None:
    shapes = [shape("a", 1), shape("large", 1000), shape("b", 6), shape("c", 1)]
    plan = plan_buckets(shapes, bucket_bytes=100, first_bucket_bytes=100)
    assert members(plan) == [[3, 2], [1], [0]]  # 28 bytes of 100 are enough for a bucket
    plan = plan_buckets(shapes, bucket_bytes=116, first_bucket_bytes=116)
    assert members(plan) == [[3, 2, 1], [0]]


@pytest.mark.parametrize(
    "other",
    [
        [shape("a", 4), shape("c", 6)],
        [shape("a", 4), shape("b", 7)],
        [shape("a", 4), shape("b", 6, "float16", 2)],
        [shape("b", 6), shape("a", 4)],
    ],
)
def test_the_digest_tells_plans_apart(other) -> None:
    def digest(shapes):
        return plan_buckets(shapes, bucket_bytes=100, first_bucket_bytes=100).digest()

    own = [shape("a", 4), shape("b", 6)]
    assert digest(own) == digest(list(own))
    assert digest(own) != digest(other)


@given(
    sizes=st.lists(st.integers(0, 50), max_size=20),
    bucket_bytes=st.integers(1, 300),
    first_bucket_bytes=st.integers(1, 300),
)
def test_every_parameter_has_one_place(sizes, bucket_bytes, first_bucket_bytes) -> None:
    plan = plan_buckets(
        [shape(str(index), size) for index, size in enumerate(sizes)],
        bucket_bytes=bucket_bytes,
        first_bucket_bytes=first_bucket_bytes,
    )
    assert [i for bucket in members(plan) for i in bucket] == list(range(len(sizes)))[::-1]
    for index, bucket in enumerate(plan.buckets):
        limit = bucket_bytes if index else first_bucket_bytes
        before_the_last = bucket.places[-1].start * 4
        assert bucket.elements * 4 <= limit or before_the_last * 4 < limit
        assert index + 1 == len(plan.buckets) or bucket.elements * 16 >= limit
        assert bucket.places[0].start == 0
        for place in bucket.places:
            assert place.stop - place.start == sizes[place.parameter]
