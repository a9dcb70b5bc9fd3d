from __future__ import annotations

import pytest

from scripts.restarts import MOST_IN_WINDOW, WINDOW_S, RestartPolicy


def test_at_once_then_later_and_later_then_never():
    policy = RestartPolicy()
    delays = [policy.next_start_s(-9, 100.0) for _ in range(MOST_IN_WINDOW)]
    assert delays == [100.0, 100.25, 100.5, 101.0, 102.0, 104.0]
    assert policy.next_start_s(-9, 100.0) is None


def test_deaths_that_are_long_past_do_not_count():
    policy = RestartPolicy()
    for _ in range(MOST_IN_WINDOW):
        policy.next_start_s(1, 100.0)
    assert policy.next_start_s(1, 100.0 + WINDOW_S) == 100.0 + WINDOW_S


@pytest.mark.parametrize("exit_code", [0, 78])
def test_some_ends_are_final(exit_code):
    assert RestartPolicy().next_start_s(exit_code, 0.0) is None
