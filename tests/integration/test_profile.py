"""`dtdctl profile` of a real job: its trace, a job that ends, a worker that dies meanwhile."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from dtd.ctl.profile import _fetch
from dtd.errors import RequestRefused
from dtd.net.blocking_link import connect_tcp
from dtd.wire import messages as m

pytestmark = pytest.mark.integration

NAMES = ["worker-0", "worker-1"]
PATIENCE_S = 100.0
LONG = "job.epochs=100000"
STANDS_AT = 20


@pytest.fixture(scope="module")
def daemons(start_daemons):
    return start_daemons(2)


def trace_of(path):
    with gzip.open(path) as file:
        return json.load(file)["traceEvents"]


def named(events, pid, kind):
    """(begin, end) of a process' spans whose names begin so, in the order of their begin."""
    found = [e for e in events if e["ph"] == "X" and e["pid"] == pid and e["name"].startswith(kind)]
    return sorted((one["ts"], one["ts"] + one["dur"]) for one in found)


def asked_of(daemons, file=""):
    """How often each worker has been asked."""
    logs = [daemons.child(name).log_path.read_text() for name in NAMES]
    return [log.count('"profile_asked"') for log in logs]


class Standing:
    """A job that stands at a gate, and of which a profile has been asked for."""

    def __init__(self, daemons, pool, *more, overrides=(), steps=100):
        before = asked_of(daemons)
        self.gates = daemons.hold(STANDS_AT + 1, *more)
        self.job = daemons.submit("elastic.min_workers=1", *overrides, gates=self.gates)
        daemons.await_event("generation_running", "")
        daemons.until(self.job, lambda: self._step(daemons) == STANDS_AT)
        request = m.Profile(job=self.job, steps=steps, limit_s=60.0)
        self.answer = pool.submit(daemons.ask, request)
        daemons.until(self.job, lambda: asked_of(daemons) == [count + 1 for count in before])

    def _step(self, daemons):
        return min(worker["step"] for worker in daemons.ask(m.GetStatus())["workers"])


def test_a_job_that_ends_meanwhile_and_a_worker_that_dies(start_daemons, tmp_path):
    """It comes first: the job of the others trains, as fast as it can, until they are over."""
    daemons = start_daemons(2)
    with ThreadPoolExecutor() as pool:
        ends = Standing(daemons, pool)
        with pytest.raises(RequestRefused, match=f"a profile of {ends.job} is under way"):
            daemons.ask(m.Profile(job=ends.job, steps=1, limit_s=1.0))
        ends.gates.open(0)
        answer = ends.answer.result(PATIENCE_S)
        steps = [one["steps"] for one in answer["workers"]]
        total = daemons.wait(ends.job)["result"]["steps"]
        assert steps == [total - STANDS_AT - 1] * 2, "all but the one that stood at the gate"
        with pytest.raises(RequestRefused, match="does not run: it is done"):
            daemons.ask(m.Profile(job=ends.job, steps=1, limit_s=1.0))
        daemons.await_idle()
        again = daemons.ask(m.Profile(job=ends.job, file=answer["file"]))
        assert [one["alive"] for one in again["workers"]] == [True, True]
        for before, now in zip(answer["workers"], again["workers"], strict=True):
            found = _fetch(now, again["file"], tmp_path / now["name"], connect_tcp)
            assert len([span for span in found.spans if span.kind == "step"]) == before["steps"]

        dies = Standing(daemons, pool, STANDS_AT + 6, overrides=("job.epochs=8",))
        dies.gates.open(0)
        daemons.until(dies.job, lambda: dies._step(daemons) == STANDS_AT + 5)
        daemons.ask(m.KillWorker(name="worker-1", signal="KILL"))
        dies.gates.open(1)
        answer = dies.answer.result(PATIENCE_S)
        alive, dead = answer["workers"]
        assert (dead["name"], alive["reason"]) == ("worker-1", "")
        assert "worker-1 left" in dead["reason"]
        assert 0 < alive["steps"] <= 6, "of the generation that ended with the worker"
        daemons.wait(dies.job)


@pytest.fixture(scope="module")
def job(daemons):
    """One that trains for long."""
    made = daemons.submit(LONG)
    daemons.await_event("generation_running")
    yield made
    daemons.ask(m.CancelJob(job=made))
    daemons.wait(made)


def test_a_running_job(job, dtdctl, tmp_path):
    path = tmp_path / "trace.json.gz"
    exit_code, out, err = dtdctl("profile", job, str(path), "--steps", "3", "-o", "json")
    assert exit_code == 0, err
    report = json.loads(out)
    assert [one["name"] for one in report["workers"]] == NAMES
    assert report["missing"] == {}
    assert report["limit"] in {*report["parts"], None}  # of nearly equal parts none limits
    assert 0 <= report["overlap"] <= 1
    assert all(0 < one["clock_uncertainty_s"] < 1 for one in report["workers"])
    events = trace_of(path)
    titles = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert titles == {"rank 0: worker-0", "rank 1: worker-1"}
    for pid in (1, 2):
        steps = named(events, pid, "step ")
        assert len(steps) == 3
        for kind in ("wait", "chunk", "hop"):  # a neighbour that is ahead sends before this step
            assert named(events, pid, kind), kind
        for kind in ("bucket ", "forward", "vote", "commit", "data"):
            spans = named(events, pid, kind)
            assert spans, kind
            for begin, end in spans:
                inside = [1 for first, last in steps if first - 1 <= begin and end <= last + 1]
                assert inside, (kind, begin, end, steps)
        assert named(events, pid, "aten::"), "what torch recorded"
    # One that hears of the request late begins a step later.
    numbers = [{e["name"] for e in events if e["pid"] == pid} for pid in (1, 2)]
    steps = [name for name in sorted(numbers[0] & numbers[1]) if name.startswith("step ")]
    assert steps
    both = [[span for name in steps for span in named(events, pid, name)] for pid in (1, 2)]
    uncertainty_us = 2e6 * max(one["clock_uncertainty_s"] for one in report["workers"])
    for (begin, end), (other_begin, other_end) in zip(*both, strict=True):
        assert begin < other_end + uncertainty_us, "ranks of one step overlap on one clock"
        assert other_begin < end + uncertainty_us


def test_a_second_profile_and_odd_ones_are_refused(daemons, job, dtdctl, tmp_path):
    path = str(tmp_path / "trace.json")
    assert "a profile has 1 to 100 steps" in dtdctl("profile", job, path, "--steps", "101")[2]
    assert "is not a directory" in dtdctl("profile", job, str(tmp_path / "no" / "t.json"))[2]
    with pytest.raises(RequestRefused, match="is not the last profile"):
        daemons.ask(m.Profile(job=job, file="other"))
    exit_code, out, _ = dtdctl("profile", job, path, "--steps", "2")
    assert exit_code == 0
    assert "OVERLAP" in out  # what limits a step is told only of steps that all have recorded
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
