"""Content of `dtdctl status`, and its diagnostics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dtd import diagnostics
from dtd.cluster.records import Job, Liveness, Worker
from dtd.cluster.run import Run
from dtd.cluster.state import ClusterState, CoordinatorIdentity
from dtd.cluster.status import (
    FORGOTTEN_S,
    MAX_DIAGNOSTICS,
    Diagnostics,
    EndedJob,
    standing,
    status_of,
)
from dtd.cluster.transitions import GenerationState, JobState, WorkerState
from dtd.cluster.workers.registration import newcomer
from dtd.wire import messages as m
from tests.registrations import registration

# --- the status object: who is compared, how the last job ended, what is not known ---------------


SPEC = {"job": {"name": "j", "task": "digits", "global_batch_size": 64, "epochs": 2}}


def beat(own_s: float, step_s: float = 0.1, **more: Any) -> m.Heartbeat:
    return m.Heartbeat(state="running", own_s=own_s, step_s=step_s, **more)


def cluster(*beats: m.Heartbeat | None, **job: Any) -> ClusterState:
    """A running job whose members sent these."""
    made = ClusterState(
        heartbeat_interval_s=0.25,
        heartbeat_timeout_s=1.5,
        run=Run(generation=3),
    )
    for rank, one in enumerate(beats):
        name = f"w-{rank}"
        made.workers[name] = Worker(
            registration=registration(
                name=name,
                incarnation=1,
                pid=100 + rank,
                host="h",
                device="cpu",
                data_host="h",
                data_port=1,
                version="0",
            ),
            state=WorkerState.RUNNING,
            liveness=Liveness(heartbeat=one),
        )
        made.run.roster.append(name)
    made.job = Job(id="j-1", spec=SPEC, state=JobState.RUNNING, generation=3, **job)
    return made


def status(
    made: ClusterState, *, now: float = 0.0, last_job: EndedJob | None = None
) -> dict[str, Any]:
    return status_of(
        [made], explain="", address="a", uptime_s=1.0, version="0", now=now, last_job=last_job
    )


# --- the straggler ---------------------------------------------------------------------------


def test_only_running_members_are_compared():
    made = cluster(beat(0.01), beat(0.09), beat(0.01))
    made.straggler.name = "w-1"
    assert status(made)["job"]["straggler"] == {"name": "w-1", "cost_s": pytest.approx(0.08)}
    made.workers["w-1"].state = WorkerState.FROZEN
    assert status(made)["job"]["straggler"] is None
    made.workers["w-1"].state = WorkerState.RUNNING
    made.run.roster.remove("w-1")
    assert status(made)["job"]["straggler"] is None


# --- the job ---------------------------------------------------------------------------------


def test_the_rate_is_that_of_the_slowest_member():
    made = cluster(beat(0.01, 0.1), beat(0.01, 0.2), None, samples_per_s=5.0, skipped_steps=2)
    job = status(made)["job"]
    assert (job["samples_per_s"], job["skipped_steps"]) == (320.0, 2)
    assert status(cluster(None, samples_per_s=5.0))["job"]["samples_per_s"] == 5.0


def sharded(**terms: Any) -> ClusterState:
    """Four members train a sharded job, at step 7."""
    made = cluster(None, None, None, None, step=7)
    assert made.job is not None
    spec = {**SPEC, "strategy": {"name": "sharded", **terms}}
    made.job = Job(id="j-1", spec=spec, state=JobState.RUNNING, generation=3, step=7)
    made.job.roster = tuple(made.run.roster)
    made.run.phase = GenerationState.RUNNING
    return made


def test_how_many_may_be_lost_of_a_sharded_job():
    made = sharded()
    assert status(made)["job"]["redundancy"] == 1
    made.workers["w-2"].state = WorkerState.LOST
    assert status(made)["job"]["redundancy"] == 0
    made.run.phase = GenerationState.FORMING
    assert status(made)["job"]["redundancy"] is None
    assert status(sharded(mirrors=0))["job"]["redundancy"] == 0
    plain = cluster(None, None)
    plain.run.phase = GenerationState.RUNNING
    assert status(plain)["job"]["redundancy"] is None


def test_what_each_worker_holds_of_a_sharded_job():
    made = sharded()
    assert status(made)["workers"][0]["holds"] == {
        "step": 7,
        "where": "memory",
        "shards": [[0.0, 0.5]],
    }
    kept = made.workers["w-1"]
    kept.state = WorkerState.READY
    kept.holdings.held = m.Held(
        job="j-1", generation=2, step=5, digest="", where="checkpoint", part=(0, 1, 1, 4)
    )
    made.workers["w-2"].state = WorkerState.WARMING
    found = [one["holds"] for one in status(made)["workers"]]
    assert found[1] == {"step": 5, "where": "checkpoint", "shards": [[0.0, 0.25]]}
    assert found[2] is None
    plain = cluster(None)
    assert status(plain)["workers"][0]["holds"] is None
    plain.job = None
    assert status(plain)["workers"][0]["holds"] is None


def test_the_last_job_has_its_traceback():
    job = Job(
        id="j-1",
        spec=SPEC,
        state=JobState.FAILED,
        reason="w-1: ValueError: no",
        step=7,
        result={"traceback": "Traceback ..."},
    )
    last = status(cluster(), last_job=EndedJob(job=job, ended_s=5.0))["last_job"]
    assert (last["id"], last["state"], last["reason"]) == ("j-1", "failed", "w-1: ValueError: no")
    assert (last["traceback"], last["step"], last["ended_s"]) == ("Traceback ...", 7, 5.0)
    done = EndedJob(job=Job(id="j-0", spec=SPEC, state=JobState.DONE), ended_s=4.0)
    assert status(cluster(), last_job=done)["last_job"]["traceback"] == ""


# --- workers ---------------------------------------------------------------------------------


def test_a_worker_says_where_its_training_stands_still():
    stalled = beat(0.01, stalled_s=3.0, patience_s=5.0, where="task.py:12 in loss", waiting="ring")
    (worker,) = status(cluster(stalled))["workers"]
    assert (worker["stalled_s"], worker["patience_s"]) == (3.0, 5.0)
    assert (worker["where"], worker["reason"], worker["own_s"]) == (
        "task.py:12 in loss",
        "ring",
        0.01,
    )
    assert worker["rank"] == 0


def test_bytes_of_a_worker_are_those_that_travelled_and_those_before_coding():
    (worker,) = status(cluster(beat(0.01, sent_bytes=84, plain_bytes=100)))["workers"]
    assert (worker["sent_bytes"], worker["plain_bytes"]) == (84, 100)


@pytest.mark.parametrize(
    "state", [WorkerState.LOST, WorkerState.RELEASED, WorkerState.DISCONNECTED]
)
def test_nobody_hears_from_those_that_are_not_there(state):
    made = cluster(beat(0.01), None)
    for name in made.workers:
        made.detector.watch(name, 1.0)
    made.workers["w-1"].state = state
    made.run.roster.remove("w-1")
    here, gone = status(made, now=1.5)["workers"]
    assert (here["last_heartbeat_s"], gone["last_heartbeat_s"]) == (0.5, None)
    assert (gone["rank"], gone["state"], gone["step"]) == (None, state.value, 0)


def test_a_worker_that_has_moved_is_shown_where_it_is() -> None:
    here, before = cluster(beat(0.1)), cluster(beat(0.1))
    assert before.job is not None
    before.job.id = "j-0"
    before.workers["w-0"].state = WorkerState.LOST
    shown = status_of(
        [here, before],
        explain="",
        address="a",
        uptime_s=1.0,
        version="0",
        now=0.0,
        explanations={"j-0": "why"},
        explain_queue="waits",
    )
    assert [(one["name"], one["job"]) for one in shown["workers"]] == [("w-0", "j-1")]
    assert [(one["id"], one["explain"]) for one in shown["jobs"]] == [("j-1", ""), ("j-0", "why")]
    assert shown["queue_explain"] == "waits"


def test_parameter_servers_are_counted_apart():
    made = cluster(beat(0.1), beat(0.1), beat(0.1), servers=1)
    job = status(made)["job"]
    assert (job["world_size"], job["servers"]) == (3, 1)
    made.run.roster = []
    assert status(made)["job"]["servers"] == 0


# --- diagnostics for the status: bounded, dated, and gone when they are over ---------------------


def away(host: str = "10.0.0.7", why: str = "why") -> diagnostics.Diagnostic:
    return diagnostics.turned_away(host, why, "do this")


def where(known: Diagnostics, now: float = 0.0) -> list[str]:
    return [one["where"] for one in known.listing(now)]


def test_one_is_listed_with_its_age_and_is_news_once() -> None:
    known = Diagnostics()
    assert known.note(away(), 10.0)
    assert not known.note(away(), 11.0)
    assert known.note(away(why="another why"), 12.0)
    [listed] = known.listing(15.0)
    assert listed == {
        "since_s": 5.0,
        "where": "10.0.0.7",
        "kind": "turned-away",
        "message": "10.0.0.7 was rejected: another why",
        "remedy": "do this",
    }


def test_there_are_never_more_than_so_many_and_the_latest_stay() -> None:
    known = Diagnostics()
    for number in range(MAX_DIAGNOSTICS + 5):
        known.note(away(f"host{number}"), float(number))
    known.note(away("host7"), 100.0)
    listed = where(known, 100.0)
    assert len(listed) == MAX_DIAGNOSTICS
    assert (listed[0], listed[-1]) == ("host5", "host7")


def test_it_is_over_when_the_host_succeeds_or_long_after() -> None:
    known = Diagnostics()
    for host in ("a", "b", "c"):
        known.note(away(host), 0.0)
    known.over("a", "w-0")
    assert where(known) == ["b", "c"]
    known.over("b", kind="disk")
    assert where(known) == ["b", "c"]
    known.over("b", kind="turned-away")
    assert where(known, FORGOTTEN_S) == ["c"]
    assert where(known, FORGOTTEN_S + 1) == []


def test_what_stands_lasts_until_it_is_not_found_any_more() -> None:
    known = Diagnostics()
    lasting, passing = diagnostics.disk("w-0", "full"), away()
    known.note(passing, 0.0)
    assert known.stand([lasting], 0.0) == [lasting]
    assert known.stand([lasting], 1.0) == []
    known.over("w-0")
    assert where(known, FORGOTTEN_S) == ["10.0.0.7", "w-0"]
    assert known.stand([], 2.0) == []
    assert where(known, 2.0) == ["10.0.0.7"]


@pytest.fixture
def bare() -> ClusterState:
    made = ClusterState(
        heartbeat_interval_s=0.25,
        heartbeat_timeout_s=1.5,
        identity=CoordinatorIdentity(version="0.1.0", host="chief"),
    )
    for name, host in (("w-0", "10.0.0.1"), ("w-1", "fd00::1")):
        message = m.Register(
            name=name,
            incarnation=1,
            pid=1,
            host=f"host-of-{name}",
            device="cpu",
            data_host=host,
            data_port=7000,
            version="0.1.0",
        )
        made.workers[name] = newcomer(message)
    return made


def test_refused_workers_are_named_with_their_hosts(bare: ClusterState) -> None:
    one, other = bare.workers.values()
    one.state, one.foreign = WorkerState.INCOMPATIBLE, True
    one.registration = replace(one.registration, version="9.9.0")
    other.state, other.reason = WorkerState.INCOMPATIBLE, "its dataset has 10 rows, not 12"
    version, unfit = standing(bare)
    assert (version.kind, version.where) == ("version", "w-0")
    assert (
        version.message
        == "w-0 on host-of-w-0 runs dtd 9.9.0, the coordinator on chief runs dtd 0.1.0"
    )
    assert unfit.message == (
        "w-1 on host-of-w-1 cannot train with the others: its dataset has 10 rows, not 12"
    )


def test_a_worker_is_listed_with_all_addresses_of_its_data_port(bare: ClusterState) -> None:
    one, other = bare.workers.values()
    one.registration = replace(one.registration, others=("fd00::2",))
    other.registration = replace(other.registration, data_host="", data_port=0)  # not back yet
    found = [worker["addresses"] for worker in status(bare)["workers"]]
    assert found == [["10.0.0.1:7000", "[fd00::2]:7000"], []]


def test_a_dead_link_is_named_with_both_data_ports(bare: ClusterState) -> None:
    bare.links.accuse("w-0", "w-1", "unreachable")
    bare.links.judge(["w-0", "w-1"], 0.0)
    [found] = standing(bare)
    assert found.message == (
        "no connection between w-0 (data port 10.0.0.1:7000) and w-1 (data port [fd00::1]:7000)"
    )
    for name in ("w-0", "w-1"):
        kept = bare.workers.pop(name)
        assert standing(bare) == []
        bare.workers[name] = kept


def test_a_worker_that_is_kept_although_it_stands_still_is_named_with_the_way_out(
    bare: ClusterState,
) -> None:
    bare.workers["w-1"].liveness.kept = "no other worker that makes progress holds step 7"
    [found] = standing(bare)
    assert found.message == (
        "w-1 on host-of-w-1 has stalled but is not restarted, because"
        " no other worker that makes progress holds"
        " step 7: its training thread does not respond"
    )
    assert "`dtdctl kill-worker w-1` discards what is in its memory" in found.remedy
    assert "elastic.stall_timeout_s" in found.remedy
