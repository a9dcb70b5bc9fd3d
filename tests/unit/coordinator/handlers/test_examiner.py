"""EXAMINE over a real connection: relayed to workers that tests play, or refused."""

from __future__ import annotations

import time

import pytest

from dtd.wire import messages as m
from tests.unit.coordinator.asking import refused


def examine(what, **request):
    return m.Examine(what=what, **{"spec": {}, **request})


def answered(daemon, worker, message, figures, **answer):
    """Have the worker answer what the coordinator then asks of it; (question, answer)."""
    with daemon.connect() as client:
        client.ask(message)
        asked = worker.hear(m.Measure)
        worker.say(m.Measured(number=asked.number, figures=figures, **answer))
        return asked, client.answer()


def test_a_clock_is_read_several_times_and_the_quickest_reading_counts(daemon, play):
    worker = play(daemon, "w0")
    with daemon.connect() as client:
        client.ask(examine("host", worker="w0"))
        for _ in range(5):
            asked = worker.hear(m.Measure)
            figures = {"time_s": time.time() + 100.0, "version": "1"}
            worker.say(m.Measured(number=asked.number, figures=figures))
        answer = client.answer()
    assert answer["skew_s"] == pytest.approx(100.0, abs=30.0)
    assert answer["round_trip_s"] > 0


def test_a_running_job_is_not_disturbed_unless_somebody_insists(daemon, play, spec):
    worker = play(daemon, "w0")
    job = daemon.ask(m.SubmitJob(spec=spec))["job"]
    worker.run_alone()
    for heavy in (examine("bandwidth", worker="w0", peer="w1"), examine("step", worker="w0")):
        assert f"would slow job {job} down" in refused(daemon, heavy)[0]
    light = examine("latency", worker="w0", peer="w0")
    assert answered(daemon, worker, light, {"rtt_s": 1.0})[1] == {"rtt_s": 1.0}
    forced = examine("bandwidth", worker="w0", peer="w0", force=True)
    assert answered(daemon, worker, forced, {"rtt_s": 2.0})[1] == {"rtt_s": 2.0}
