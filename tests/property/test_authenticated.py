"""A few stories of those who got in and say anything; many more with `scripts/fuzz coordinator`."""

from __future__ import annotations

import structlog

from scripts.fuzz_authenticated import run


def test_nobody_who_got_in_can_stop_the_coordinator_or_a_job_that_he_is_no_member_of() -> None:
    """The same stories each time."""
    with structlog.testing.capture_logs():
        run(examples=12, steps=15, derandomize=True, shrinks=False)
