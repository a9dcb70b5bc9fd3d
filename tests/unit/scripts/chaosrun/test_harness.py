"""A chaos run whose coordinator refuses its job; every request gets the same answer."""

from __future__ import annotations

import pytest

from dtd.errors import CoordinatorUnreachable, RequestRefused
from scripts.chaosrun.harness import Harness

SPEC = {"task": {"commands": ""}, "checkpoint": {"every_steps": 0}}


class Daemons:
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


@pytest.mark.parametrize(
    ("error", "jobs", "ends"),
    [
        (RequestRefused("no workers have credentials"), [], True),
        (CoordinatorUnreachable("away"), [], False),
        (RequestRefused("the disk is full"), ["chaos-1"], False),
    ],
)
def test_a_first_job_that_is_refused_ends_the_run(error, jobs, ends):
    daemons = Daemons(error)
    harness = Harness(daemons, workers=[], spare="", spec=SPEC, seed=0, say=lambda _: None)
    harness.job_wanted = True
    harness.jobs += jobs
    harness.timeline.jobs_ended |= dict.fromkeys(jobs, "done")
    if ends:
        with pytest.raises(RequestRefused, match="credentials"):
            harness.turn()
    else:
        harness.turn()
        harness.turn()
        assert (daemons.asked, harness.jobs) == (2, jobs)
