"""`dtdctl profile` of a real job: its trace, a job that ends, a worker that dies meanwhile."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from dtd.ctl.commands.profile import _fetch
from dtd.errors import RequestRefused
from dtd.net.clients.blocking_link import connect_tcp
from dtd.wire import messages as m

pytestmark = pytest.mark.integration

NAMES = ["worker-0", "worker-1"]
PATIENCE_S = 100.0
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


def asked_of(daemons):
    """How often each worker has been asked."""
    logs = [daemons.child(name).log_path.read_text() for name in NAMES]
    return [log.count('"profile_asked"') for log in logs]


class Standing:
    """A job that stands after some of its steps, where a profile is asked for."""

    def __init__(self, daemons, *steps, overrides=()):
        self._daemons = daemons
        self.gates = daemons.hold(*(step + 1 for step in steps))
        settings = ("job.epochs=8", "elastic.min_workers=2", *overrides)
        self.job = daemons.submit(*settings, gates=self.gates)

    def await_step(self, step):
        """All stand after this step."""
        self._daemons.until(self.job, lambda: self._step() == step)

    def asked(self, pool, ask, *arguments):
        """The coming answer to a profile, of which all know when this returns."""
        before = asked_of(self._daemons)
        answer = pool.submit(ask, *arguments)
        known = [count + 1 for count in before]
        self._daemons.until(self.job, lambda: asked_of(self._daemons) == known)
        return answer

    def _step(self):
        return min(worker["step"] for worker in self._daemons.ask(m.GetStatus())["workers"])


@pytest.fixture
def pool():
    with ThreadPoolExecutor() as made:
        yield made


def test_a_running_job(daemons, pool, dtdctl, tmp_path):
    path = tmp_path / "trace.json.gz"
    stands = Standing(daemons, STANDS_AT, overrides=("job.epochs=3",))  # of 8 steps: the last 3
    stands.await_step(STANDS_AT)
    words = ("profile", stands.job, str(path), "--steps", "3", "-o", "json")
    answer = stands.asked(pool, dtdctl, *words)
    stands.gates.open(0)
    exit_code, out, err = answer.result(PATIENCE_S)
    assert exit_code == 0, err
    report = json.loads(out)
    assert [one["name"] for one in report["workers"]] == NAMES
    assert report["missing"] == {}
    assert report["limit"] in {*report["parts"], None}  # of nearly equal parts none limits
    assert 0 <= report["overlap"] <= 1
    assert all(one["clock_uncertainty_s"] > 0 for one in report["workers"])
    events = trace_of(path)
    titles = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert titles == {"rank 0: worker-0", "rank 1: worker-1"}
    for pid in (1, 2):
        steps = named(events, pid, "step ")
        assert len(steps) == 3
        for kind in (
            "exposed communication",
            "chunk",
            "hop",
        ):  # a neighbour that is ahead sends before this step
            assert named(events, pid, kind), kind
        for kind in ("bucket ", "compute", "vote", "optimizer", "data"):
            spans = named(events, pid, kind)
            assert spans, kind
            for begin, end in spans:
                inside = [1 for first, last in steps if first - 1 <= begin and end <= last + 1]
                assert inside, (kind, begin, end, steps)
        assert named(events, pid, "aten::"), "what torch recorded"
    both = [named(events, pid, "step ") for pid in (1, 2)]
    uncertainty_us = 2e6 * max(one["clock_uncertainty_s"] for one in report["workers"])
    for (begin, end), (other_begin, other_end) in zip(*both, strict=True):
        assert begin < other_end + uncertainty_us, "ranks of one step overlap on one clock"
        assert other_begin < end + uncertainty_us
    assert daemons.wait(stands.job)["state"] == "done"


def test_a_job_that_ends_meanwhile_and_a_worker_that_dies(daemons, pool, dtdctl, tmp_path):
    daemons.await_idle()
    ends = Standing(daemons, STANDS_AT, overrides=("job.epochs=4",))
    ends.await_step(STANDS_AT)
    answer = ends.asked(pool, daemons.ask, m.Profile(job=ends.job, steps=100, limit_s=60.0))
    for words, refusal in (
        ((str(tmp_path / "t.json"), "--steps", "101"), "a profile has 1 to 100 steps"),
        ((str(tmp_path / "no" / "t.json"),), "is not a directory"),
    ):
        assert refusal in dtdctl("profile", ends.job, *words)[2]
    for request, refusal in (
        ({"file": "other"}, "is not the last profile"),
        ({"steps": 1, "limit_s": 1.0}, f"a profile of {ends.job} is under way"),
    ):
        with pytest.raises(RequestRefused, match=refusal):
            daemons.ask(m.Profile(job=ends.job, **request))
    ends.gates.open(0)
    answer = answer.result(PATIENCE_S)
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

    dies = Standing(daemons, STANDS_AT, STANDS_AT + 5, overrides=("elastic.min_workers=1",))
    dies.await_step(STANDS_AT)
    answer = dies.asked(pool, daemons.ask, m.Profile(job=dies.job, steps=100, limit_s=60.0))
    dies.gates.open(0)
    dies.await_step(STANDS_AT + 5)
    daemons.ask(m.KillWorker(name="worker-1", signal="KILL"))
    dies.gates.open(1)
    answer = answer.result(PATIENCE_S)
    alive, dead = answer["workers"]
    assert (dead["name"], alive["reason"]) == ("worker-1", "")
    assert "worker-1 left" in dead["reason"]
    assert 0 < alive["steps"] <= 6, "of the generation that ended with the worker"
    assert daemons.wait(dies.job)["state"] == "done"
