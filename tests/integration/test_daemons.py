"""Two workers and their coordinator through job after job: done, cancelled, continued, failed.

Jobs cost most of the time here, so each test looks at those that the others have run too.
"""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from dtd.address import Address
from dtd.errors import ErrorCode, RequestRefused
from dtd.net.clients.blocking_link import connect_tcp
from dtd.net.clients.fetch_client import FetchClient, file_digest
from dtd.net.local_socket import call
from dtd.wire import messages as m
from dtd.wire.frames import FrameDecoder
from dtd.wire.session import DataCredential

pytestmark = pytest.mark.integration

NAMES = ["worker-0", "worker-1"]
# The sum over two workers is not the sum over one, so all jobs have as many.
TWO = "elastic.min_workers=2"


class TwoJobs:
    """The same job twice: the first is done, the second waits at its gate until `cancel`."""

    def __init__(self, daemons):
        self.daemons = daemons
        first_gates = daemons.hold(3)
        self._gates = daemons.hold(3)
        self.first = daemons.submit(TWO, gates=first_gates)
        self.second = daemons.submit(TWO, gates=self._gates)
        daemons.await_event("generation_running", job=self.first)
        self.status = daemons.ask(m.GetStatus())
        first_gates.open(0)
        self.answer = daemons.wait(self.first)
        self.cancelling: dict[str, str] = {}
        daemons.await_event("generation_running", job=self.second)

    def cancel(self):
        """The second one's answer when it was cancelled at its gate; may be called again."""
        if not self.cancelling:
            self.cancelling = self.daemons.ask(m.CancelJob(job=self.second))
            self._gates.open(0)
        return self.daemons.wait(self.second)


@pytest.fixture(scope="module")
def daemons(start_daemons):
    return start_daemons(2)


@pytest.fixture(scope="module")
def two_jobs(daemons):
    return TwoJobs(daemons)


@pytest.fixture
def idle(daemons, two_jobs):
    """The daemons, when no job is left."""
    two_jobs.cancel()
    daemons.await_idle()
    return daemons


def built_lines(daemons, job):
    """(worker, interpreter) of the lines that the task printed."""
    lines = daemons.ask(m.ReadLogs(job=job))["lines"]
    built = [line for line in lines if line["text"].startswith("built by")]
    return {(line["worker"], line["text"].split()[-1]) for line in built}


def test_a_job_is_done_by_equal_replicas_and_uses_every_row_once(two_jobs):
    answer, result = two_jobs.answer, two_jobs.answer["result"]
    assert (answer["job"], answer["state"], answer["reason"]) == (two_jobs.first, "done", "")
    assert (result["steps"], result["epochs"], result["world_size"]) == (32, 4, 2)
    assert sorted(result["replica_digests"]) == NAMES
    assert len(set(result["replica_digests"].values())) == 1
    assert (result["rows_missing"], result["rows_repeated"], result["steps_lost"]) == (0, 0, 0)
    assert result["eval_accuracy"] == result["metrics"]["accuracy"] > 0.8


def test_a_second_job_waits_for_the_first_and_gets_clean_interpreters(daemons, two_jobs):
    assert two_jobs.status["job"]["id"] == two_jobs.first
    assert two_jobs.status["queue"] == [two_jobs.second]
    # What is printed is kept when the job has ended; until then it may still be on its way.
    daemons.until(two_jobs.second, lambda: len(built_lines(daemons, two_jobs.second)) == 2)
    first, second = built_lines(daemons, two_jobs.first), built_lines(daemons, two_jobs.second)
    assert {name for name, _ in first} == {name for name, _ in second} == set(NAMES)
    assert len({interpreter for _, interpreter in first | second}) == 4
    (forming,) = daemons.events("generation_forming", two_jobs.second)
    (done,) = daemons.events("job_done", two_jobs.first)
    assert done["seq"] < forming["seq"]


def test_what_a_task_prints_is_there_when_the_job_has_ended(daemons, two_jobs):
    lines = daemons.ask(m.ReadLogs(job=two_jobs.first))
    assert {line["worker"] for line in lines["lines"]} == set(NAMES)
    assert lines["next"] == lines["lines"][-1]["seq"]
    assert daemons.ask(m.ReadLogs(job=two_jobs.first, after=lines["next"]))["lines"] == []


def test_jobs_are_listed_newest_first(daemons, two_jobs):
    jobs = {job["id"]: job for job in daemons.ask(m.ListJobs())["jobs"]}
    assert list(jobs).index(two_jobs.second) < list(jobs).index(two_jobs.first)
    first = jobs[two_jobs.first]
    assert (first["state"], first["step"], first["total_steps"]) == ("done", 32, 32)
    assert first["submitted_s"] <= first["started_s"] <= first["ended_s"]


def final_checkpoint(daemons, job):
    found = daemons.ask(m.ListCheckpoints(job=job, tickets=True))["checkpoints"]
    assert [one["step"] for one in found] == [32, 30, 20]
    return found[0]


def test_a_checkpoint_is_listed_with_what_it_is_worth(daemons, two_jobs):
    last = final_checkpoint(daemons, two_jobs.first)
    assert last["digest"] in two_jobs.answer["result"]["replica_digests"].values()
    assert last["metrics"] == two_jobs.answer["result"]["metrics"]
    assert (last["worker"], last["generation"], last["verified"]) == ("worker-0", 1, True)


def garbage(connection):
    """The answer to a sender; it ends because the other side closes."""
    with connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: dtd\r\n\r\n")
        received = b""
        while data := connection.recv(65536):
            received += data
    return [m.decode_message(frame.header) for frame in FrameDecoder().feed(received)]


def test_garbage_costs_nobody_but_its_sender(idle, two_jobs, tmp_path):
    before = idle.pids()
    last = final_checkpoint(idle, two_jobs.first)
    data_port = Address(last["data_host"], last["data_port"])
    resource = f"checkpoint/{last['folder']}/{last['name']}"
    ticket = DataCredential(
        secret=last["ticket_key"], scope=resource, expires_s=last["ticket_expires_s"]
    )
    with idle.connect() as operator, FetchClient([data_port], resource, ticket) as fetching:
        for connection in (call(idle.cluster.address, 60), connect_tcp(data_port, 60)):
            (told,) = garbage(connection)
            assert told.code == ErrorCode.BAD_MAGIC
        assert operator.request(m.GetStatus())["job"] is None
        fetching.fetch("model.safetensors", tmp_path / "model")
        assert file_digest(tmp_path / "model") == fetching.digest_of("model.safetensors")
    assert idle.pids() == before


def test_a_task_that_raises_fails_the_job_with_its_traceback(idle):
    job = idle.submit("task.fails_at=2")
    answer = idle.wait(job)
    assert answer["state"] == "failed"
    # Whether the other worker reaches its odd row before it hears of this is a matter of chance.
    assert re.match(
        r"worker-[01]: ValueError: row 17 is odd( \(on worker-[01], too\))?$", answer["reason"]
    )
    assert answer["reason"].partition(":")[0] in NAMES
    assert "gated_task.py" in answer["result"]["traceback"]
    assert answer["result"]["traceback"].rstrip().endswith("ValueError: row 17 is odd")


def start_steps(daemons, job):
    """Committed steps from which the job's generations began, in order."""
    return [event["step"] for event in daemons.events("generation_forming", job)]


def test_a_cancelled_job_is_gone_on_with_by_another(idle, two_jobs):
    cancelled = two_jobs.cancel()
    assert two_jobs.cancelling == {"job": two_jobs.second, "state": "stopping"}
    assert (cancelled["state"], cancelled["reason"]) == ("cancelled", "cancelled by the operator")
    newest = idle.ask(m.ListCheckpoints(job=two_jobs.second))["checkpoints"][0]
    assert 0 < newest["step"] < two_jobs.answer["result"]["steps"]

    with pytest.raises(RequestRefused, match="has no checkpoint of step 31"):
        idle.submit(TWO, from_job=two_jobs.second, from_step=31)
    other = idle.submit(TWO, from_job=two_jobs.second)
    answer = idle.wait(other)
    assert answer["state"] == "done"
    assert start_steps(idle, other) == [newest["step"]]
    digests = two_jobs.answer["result"]["replica_digests"]
    assert answer["result"]["replica_digests"] == digests


def test_a_job_goes_on_by_itself_after_everything_was_killed(idle, two_jobs):
    gates = idle.hold(15)
    job = idle.submit(TWO, gates=gates)
    kept = idle.directory / "worker-0" / "checkpoints"
    idle.until(job, lambda: any(kept.glob(f"{job}.*/g*-s000000010/manifest.json")))
    idle.until(job, lambda: {one["step"] for one in idle.ask(m.GetStatus())["workers"]} == {14})
    idle.crash()
    gates.open(0)
    idle.start_again()
    answer = idle.wait(job)
    assert answer["state"] == "done"
    assert start_steps(idle, job) == [0, 10]
    assert answer["result"]["steps_lost"] == 4
    for key in ("steps", "replica_digests", "metrics", "rows_missing", "rows_repeated"):
        assert answer["result"][key] == two_jobs.answer["result"][key]


def test_a_worker_that_crashed_says_how(idle):
    child = idle.child("worker-1")
    os.kill(idle.pids()["worker-1"], signal.SIGSEGV)
    assert child.wait(100.0) == -signal.SIGSEGV
    idle.start_again()
    event = idle.await_event("worker_crashed", containing="SIGSEGV")
    # Where, it says unless the thread had no frame of Python: tests/unit/worker/test_evidence.py.
    assert event["message"].startswith("worker-1's last process ended by SIGSEGV")
    log = [json.loads(line) for line in child.log_path.read_text().splitlines() if line[:1] == "{"]
    told = [line for line in log if line["event"] == "last_process_ended"]
    assert "Fatal Python error: Segmentation fault" in told[-1]["stack"]
    idle.await_idle()
