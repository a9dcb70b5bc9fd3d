"""A chaos run whose coordinator refuses its job.

The daemons are a fake that answers every request in the same way.
"""

from __future__ import annotations

import pytest

from dtd.errors import CoordinatorUnreachable, RequestRefused
from scripts.chaosrun.harness import Harness

SPEC = {"task": {"commands": ""}, "checkpoint": {"every_steps": 0}}


class Daemons:
    """Raises the same error at every request."""

    def __init__(self, error):
        self.error, self.asked, self.starts = error, 0, []

    def log_tail(self):
        return self

    def poll(self):
        return []

    def tend(self):
        pass

    def request(self, message):
        self.asked += 1
        raise self.error

    def try_ask(self, message):
        self.asked += 1


def harness_over(error):
    daemons = Daemons(error)
    made = Harness(daemons, workers=[], spare="", spec=SPEC, seed=0, say=lambda _: None)
    made.job_wanted = True
    return made, daemons


def test_a_first_job_that_is_refused_ends_the_run():
    harness, _ = harness_over(RequestRefused("no workers have credentials"))
    with pytest.raises(RequestRefused, match="credentials"):
        harness.turn()


def test_a_coordinator_that_is_away_is_asked_again():
    harness, daemons = harness_over(CoordinatorUnreachable("away"))
    harness.turn()
    harness.turn()
    assert daemons.asked == 2


def test_a_later_job_may_be_refused_because_of_a_fault():
    harness, daemons = harness_over(RequestRefused("the disk is full"))
    harness.jobs.append("chaos-1")
    harness.timeline.jobs_ended["chaos-1"] = "done"
    harness.turn()
    assert (daemons.asked, harness.jobs) == (1, ["chaos-1"])
