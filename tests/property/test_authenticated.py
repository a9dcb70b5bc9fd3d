"""A few stories of those who got in and say anything; many more with `scripts/fuzz coordinator`."""

from __future__ import annotations

import structlog

from scripts.fuzz_authenticated import Authenticated
from scripts.fuzz_member import OneFieldOff
from scripts.fuzz_stories import play


def test_nobody_who_got_in_can_stop_the_coordinator_or_a_job_that_he_is_no_member_of() -> None:
    """The same stories each time."""
    with structlog.testing.capture_logs():
        play(Authenticated, examples=12, steps=15, derandomize=True, shrinks=False)


def test_one_field_that_is_off_in_what_a_member_says_does_not_disturb_the_others() -> None:
    """The same stories each time."""
    with structlog.testing.capture_logs():
        play(OneFieldOff, examples=20, steps=12, derandomize=True, shrinks=False)
