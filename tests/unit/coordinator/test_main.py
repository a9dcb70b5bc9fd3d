"""The status line of `systemctl status dtd-coordinator`, and the limit of open files."""

from __future__ import annotations

import sys

from dtd.cluster.detector import Detector
from dtd.cluster.records import Job, Run, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import JobState, WorkerState
from dtd.coordinator.main import status_line
from scripts.cluster.processes import Child, stop_all
from tests.registrations import registration

SPEC = {"job": {"name": "digits", "task": "digits", "global_batch_size": 64, "epochs": 2}}


def job(number, **more):
    return Job(id=f"digits-{number}", spec=SPEC, **more)


def cluster(*states):
    made = ClusterState(
        heartbeat_interval_s=0.25,
        heartbeat_timeout_s=1.5,
        detector=Detector(timeout_s=1.5, tick_s=0.25),
        run=Run(generation=0),
    )
    for rank, state in enumerate(states):
        made.workers[f"w-{rank}"] = Worker(
            registration=registration(
                name=f"w-{rank}",
                incarnation=1,
                pid=1,
                host="h",
                device="cpu",
                data_host="h",
                data_port=1,
                version="0",
            ),
            state=state,
        )
    return made


def test_nothing_to_do():
    assert status_line(cluster()) == "no job, 0 workers"


def test_a_job_and_a_queue():
    made = cluster(
        WorkerState.RUNNING, WorkerState.DISCONNECTED, WorkerState.LOST, WorkerState.RELEASED
    )
    made.job = job(1, state=JobState.RUNNING, step=12, total_steps=60)
    made.queue.append(job(2))
    assert status_line(made) == "job digits-1 running at step 12 of 60, 2 workers, 1 job queued"


def test_one_worker():
    assert status_line(cluster(WorkerState.IDLE)) == "no job, 1 worker"


def test_the_soft_limit_of_open_files_becomes_the_hard_one(tmp_path):
    asking = (
        "import resource; from dtd.coordinator.main import raise_file_limit;"
        " raise_file_limit(); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], end='')"
    )
    command = ["/usr/bin/prlimit", "--nofile=256:512", sys.executable, "-c", asking]
    child = Child("asking", command, tmp_path / "log")
    child.start()
    assert child.wait(30) == 0
    stop_all([child])
    assert (tmp_path / "log").read_text() == "512"
