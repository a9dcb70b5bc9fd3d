"""How the cost of fault tolerance is computed from the times of steps."""

from __future__ import annotations

import pytest

from scripts.overhead import cost
from scripts.overhead_daemon import is_bare

BLOCK = 5


def commits(groups, *, complete_s, bare_s):
    """Times of rank 0's commits, with a slow first group."""
    at_s, found = 0.0, {}
    for step in range(1, (groups + 1) * 4 * BLOCK + 1):
        slow = step <= 4 * BLOCK
        at_s += 9.0 if slow else bare_s if is_bare(step - 1, BLOCK) else complete_s
        found[step] = at_s
    return found


def test_blocks_are_complete_bare_bare_complete():
    kinds = [is_bare(step, BLOCK) for step in range(0, 8 * BLOCK, BLOCK)]
    assert kinds == [False, True, True, False] * 2


def test_the_cost_is_the_ratio_of_blocks_and_warming_up_is_left_out():
    one = cost(commits(3, complete_s=1.01, bare_s=1.0), BLOCK)
    assert one.groups == 3
    assert (one.complete_s, one.bare_s) == (pytest.approx(1.01), pytest.approx(1.0))
    assert one.ratio == one.low == one.high == pytest.approx(1.01)


def test_noise_widens_the_interval():
    times = commits(8, complete_s=1.0, bare_s=1.0)
    late = {step: at_s + (0.3 if step > 60 else 0.0) for step, at_s in times.items()}
    one = cost(late, BLOCK)
    assert one.low < one.ratio < one.high
