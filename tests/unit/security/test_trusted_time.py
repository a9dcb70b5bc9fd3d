"""A clock that jumps ends nobody's credential, and brings none to life again."""

from __future__ import annotations

from dtd.security.clock import HOLD_S, TrustedTime

START_S = 1_800_000_000.0
YEAR_S = 365 * 86400.0


def test_a_jump_counts_only_once_it_has_lasted() -> None:
    for jump_s in (YEAR_S, -YEAR_S):
        time = TrustedTime(START_S, 0.0)
        assert time.now_s(START_S + jump_s + 1, 1.0) == START_S + 1
        assert time.doubt_s() == jump_s
        assert time.now_s(START_S + jump_s + HOLD_S, HOLD_S) == START_S + HOLD_S
        after_s = HOLD_S + 1
        assert time.now_s(START_S + jump_s + after_s, after_s) == START_S + jump_s + after_s
        assert time.doubt_s() == 0.0


def test_a_clock_that_was_wrong_from_the_start_poisons_nothing_before_it_has_lasted() -> None:
    time = TrustedTime(START_S + YEAR_S, 0.0, known_s=START_S)
    assert time.certain_s(HOLD_S - 1) == 0.0
    assert time.certain_s(HOLD_S) == START_S + YEAR_S + HOLD_S
