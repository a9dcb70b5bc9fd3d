"""PROFILE over a real connection: workers that tests play record, or do not."""

from __future__ import annotations

import time

import pytest

from dtd.errors import RequestRefused
from dtd.wire import messages as m

SPEC = {
    "job": {"name": "digits", "task": "digits", "steps": 50, "global_batch_size": 8},
    "elastic": {"min_workers": 1, "settle_s": 0.0},
}


def refused(daemon, message):
    with pytest.raises(RequestRefused) as caught:
        daemon.ask(message)
    return caught.value.message


@pytest.fixture
def trains(daemon, play):
    """A worker that trains a job alone, and the job."""
    worker = play(daemon, "w0")
    job = daemon.ask(m.SubmitJob(spec=SPEC))["job"]
    worker.run_alone()
    seen = 0
    while daemon.ask(m.GetStatus())["job"]["state"] != "running":
        seen = daemon.ask(m.ReadEvents(after=seen, follow=True))["next"]
    return worker, job


def tell_clock(worker, times=5, ahead_s=0.0):
    for _ in range(times):
        asked = worker.hear(m.Measure)
        assert asked.what == "host"
        worker.say(m.Measured(number=asked.number, figures={"time_s": time.time() + ahead_s}))


def test_a_worker_records_and_the_answer_says_where_it_is(daemon, trains):
    worker, job = trains
    with daemon.connect() as client:
        client.ask(m.Profile(job=job, steps=3, limit_s=5.0))
        tell_clock(worker, ahead_s=100.0)
        order = worker.hear(m.Measure)
        assert (order.what, order.job, order.steps, order.limit_s) == ("profile", job, 3, 5.0)
        assert order.first_step >= 1
        said = f"a profile of {job} is under way"
        assert refused(daemon, m.Profile(job=job, steps=1, limit_s=1.0)) == said
        odd = {"steps": 3, "dropped": {"spans": 4, "gold": 5}, "note": "x" * 999}
        worker.say(m.Measured(number=order.number, figures=odd))
        tell_clock(worker, ahead_s=100.0)
        answer = client.answer()
    (one,) = answer["workers"]
    assert (one["name"], one["rank"], one["reason"], one["steps"]) == ("w0", 0, "", 3)
    assert not one["serves"]
    assert one["dropped"] == {"spans": 4, "operations": 0}
    assert len(one["note"]) <= 200
    assert abs(one["clock_ahead_s"] - 100.0) <= one["clock_uncertainty_s"] + 0.001
    assert one["alive"]
    assert len(one["ticket_key"]) >= 16
    assert (answer["job"], answer["file"]) == (job, order.profile)
    again = daemon.ask(m.Profile(job=job, file=answer["file"]))
    assert again["workers"][0]["steps"] == 3
    assert "is not the last profile" in refused(daemon, m.Profile(job=job, file="other"))


def test_who_refuses_records_nothing(daemon, trains):
    worker, job = trains
    with daemon.connect() as client:
        client.ask(m.Profile(job=job, steps=3, limit_s=5.0))
        tell_clock(worker)
        order = worker.hear(m.Measure)
        worker.say(m.Measured(number=order.number, figures={}, reason="cannot measure 'profile'"))
        with pytest.raises(RequestRefused, match="w0: cannot measure 'profile'"):
            client.answer()


def test_what_is_no_profile_is_refused(daemon, trains):
    _, job = trains
    for odd in ({"steps": 0}, {"steps": 101}, {"limit_s": 0.0}, {"limit_s": 601.0}):
        said = refused(daemon, m.Profile(**{"job": job, "steps": 5, "limit_s": 5.0, **odd}))
        assert said == "a profile has 1 to 100 steps and takes 600 s at most"
    assert "does not exist" in refused(daemon, m.Profile(job="gold", steps=1, limit_s=1.0))
    queued = daemon.ask(m.SubmitJob(spec=SPEC))["job"]
    said = refused(daemon, m.Profile(job=queued, steps=1, limit_s=1.0))
    assert said == f"job {queued} does not run: it is queued"
