"""The limits of a step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtd.observe.profile.limits import StepTimes, median_times, verdict
from dtd.observe.profile.spans import (
    BUCKET,
    COMMIT,
    COMPUTE,
    DATA,
    STEP,
    WAIT,
    WORD,
    Span,
)

S = 10**9


def step_times(spans):
    """A profile of one worker alone."""
    return median_times({"w": spans}).get("w")


def test_the_first_step_is_the_profilers_and_one_slow_step_shifts_nothing():
    lasting = [(0, 5), (5, 6), (6, 7), (7, 17), (17, 18)]
    spans = [Span(STEP, begin * S, end * S, n) for n, (begin, end) in enumerate(lasting)]
    assert step_times(spans).step_s == 1


def times(compute=1.0, data=0.0, optimizer=0.0, exposed=0.0, busy=0.0, hidden=0.0, other=0.0):
    step_s = compute + data + optimizer + exposed + other
    return StepTimes(
        step_s=step_s,
        data_s=data,
        compute_s=compute,
        optimizer_s=optimizer,
        exposed_s=exposed,
        busy_s=busy,
        hidden_s=hidden,
    )


@pytest.mark.parametrize(
    ("workers", "limit"),
    [
        ({"a": times(3, 1, 1, 2), "b": times(3, 1, 1, 2)}, "compute"),
        ({"a": times(1, exposed=2), "b": times(1, exposed=2)}, "communication"),
        ({"a": times(1, data=2)}, "data"),
        ({"a": times(1, optimizer=2)}, "optimizer"),
        ({"a": times(1, exposed=4), "b": times(5), "c": times(1, exposed=4)}, "straggler"),
        ({"a": times(1, exposed=0.5), "b": times(1.5), "c": times(1, exposed=0.5)}, "compute"),
    ],
)
def test_the_longest_part_limits(workers, limit):
    assert verdict(workers).limit == limit


def test_only_steps_that_all_have_count():
    late = [Span(STEP, n * S, (n + 1) * S, n) for n in range(2, 6)]
    early = [Span(STEP, n * S, (n + 1 + 7 * (n < 2)) * S, n) for n in range(5)]
    found = median_times({"late": late, "early": early, "silent": []})
    assert {name: one.step_s for name, one in found.items()} == {"late": 1, "early": 1}
    assert median_times({"a": early[:1], "b": late}) == {}


def test_nothing_limits_where_nothing_stands_out():
    assert verdict({"a": times(0.04, other=0.96)}).limit == ""
    assert verdict({"a": times(0.24, 0.2, 0.2, 0.2, other=0.16)}).limit == ""


kinds = st.sampled_from([STEP, COMPUTE, DATA, COMMIT, WAIT, BUCKET, WORD])
spans = st.lists(
    st.tuples(kinds, st.integers(0, 1000), st.integers(0, 500)).map(
        lambda one: Span(one[0], one[1] * S, (one[1] + one[2]) * S)
    ),
    max_size=20,
)


@settings(max_examples=40)
@given(spans, st.integers(-(10**18), 10**18))
def test_any_spans_give_shares_of_the_step_whatever_the_clock(drawn, shift):
    drawn = [one._replace(number=at) for at, one in enumerate(drawn)]
    found = step_times(drawn)
    moved = [s._replace(begin_ns=s.begin_ns + shift, end_ns=s.end_ns + shift) for s in drawn]
    assert step_times(moved) == found
    if found is None:
        assert not any(s.kind == STEP and s.end_ns > s.begin_ns for s in drawn)
        return
    whole = found.step_s * (1 + 1e-9)
    for part in (found.data_s, found.compute_s, found.optimizer_s, found.exposed_s, found.busy_s):
        assert 0 <= part <= whole
    assert 0 <= found.hidden_s <= found.busy_s * (1 + 1e-9)
