from __future__ import annotations

from scripts.cluster.processes import MOST_IN_WINDOW, SETTLED_S, RestartPolicy


def test_at_once_then_later_and_later_then_never():
    policy = RestartPolicy()
    delays = [policy.next_start_s(-9, 100.0, lived_s=0.1) for _ in range(MOST_IN_WINDOW)]
    assert delays == [100.0, 100.25, 100.5, 101.0, 102.0, 104.0]
    assert policy.next_start_s(-9, 100.0, lived_s=0.1) is None


def test_what_had_got_going_is_started_again_at_once_however_often():
    policy = RestartPolicy()
    for now_s in range(100):
        assert policy.next_start_s(-9, now_s, lived_s=SETTLED_S) == now_s
    assert policy.next_start_s(-9, 100.0, lived_s=0.1) == 100.0
