"""The cluster's figures: what status says, and what was counted."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.records import Job, Liveness, Worker
from dtd.cluster.run import Run
from dtd.cluster.state import ClusterState
from dtd.cluster.status import status_of
from dtd.cluster.transitions import JobState, WorkerState
from dtd.observe.metrics.catalogue import BY_NAME
from dtd.observe.metrics.coordinator import CoordinatorMetrics
from dtd.wire import messages as m
from tests.registrations import registration

SPEC = {"job": {"name": "j", "task": "digits", "global_batch_size": 64, "epochs": 2}}


@pytest.fixture
def cluster() -> ClusterState:
    """Two workers train, one is lost."""
    made = ClusterState(
        heartbeat_interval_s=0.25,
        heartbeat_timeout_s=1.5,
        run=Run(generation=3),
    )
    beat = m.Heartbeat(state="running", generation=3, step=12, step_s=0.1, rtt_s=0.001)
    for name, state in (("w-0", "running"), ("w-1", "running"), ("w-2", "lost")):
        made.workers[name] = Worker(
            registration=registered(name, 1),
            state=WorkerState(state),
            liveness=Liveness(heartbeat=beat if state == "running" else None),
        )
        if state == "running":
            made.detector.watch(name, 0.0)
    made.run.roster = ["w-0", "w-1"]
    made.job = Job(
        id="j-1",
        spec=SPEC,
        state=JobState.RUNNING,
        generation=3,
        step=12,
        total_steps=40,
        epoch=1,
        loss=0.5,
        steps_lost=2,
        skipped_steps=1,
        metrics={"accuracy": 0.75},
    )
    return made


def look(cluster: ClusterState) -> tuple[list[ClusterState], dict[str, Any]]:
    status = status_of([cluster], explain="", address="a", uptime_s=9.0, version="0", now=0.5)
    return [cluster], status


def seen(figures: CoordinatorMetrics, cluster: ClusterState) -> dict[str, float]:
    """Samples as they would be written, without their prefix."""
    samples = list(figures.samples(*look(cluster)))
    for sample in samples:
        assert len(sample.labels) == len(BY_NAME[sample.name].labels), sample
        assert "coordinator" in BY_NAME[sample.name].served_by
    assert len({(sample.name, sample.labels) for sample in samples}) == len(samples)
    return {
        " ".join((sample.name.removeprefix("dtd_"), *sample.labels)): sample.value
        for sample in samples
    }


def registered(name: str, incarnation: int) -> m.Register:
    return registration(name=name, incarnation=incarnation)


def saved(step: int, generation: int = 1, job: str = "j-1", **more: Any) -> m.CheckpointSaved:
    return m.CheckpointSaved(
        job=job,
        generation=generation,
        step=step,
        digest="ab",
        size_bytes=100 * step,
        directory="/d",
        metrics={},
        kept=(),
        **more,
    )


def test_the_job_and_its_workers(cluster: ClusterState) -> None:
    figures = seen(CoordinatorMetrics(None), cluster)
    job = {name: value for name, value in figures.items() if name.startswith("job_")}
    assert job == {
        "job_step j-1": 12,
        "job_planned_steps j-1": 40,
        "job_epoch j-1": 1,
        "job_loss j-1": 0.5,
        "job_samples_per_second j-1": 640.0,
        "job_generation j-1": 3,
        "job_world_size j-1": 2,
        "job_skipped_steps_total j-1": 1,
        "job_lost_steps_total j-1": 2,
        "job_evaluation j-1 accuracy": 0.75,
    }
    assert (figures["workers running"], figures["workers lost"]) == (2, 1)
    assert figures["worker_step w-1"] == 12
    assert figures["link_round_trip_seconds w-0 w-1"] == 0.001
    assert figures["link_round_trip_seconds w-1 w-0"] == 0.001
    assert figures["worker_heartbeat_age_seconds w-0"] == 0.5
    assert not [name for name in figures if " w-2" in name]


def test_the_newest_checkpoint(cluster: ClusterState) -> None:
    figures = CoordinatorMetrics(None)
    figures.reported(saved(10, write_s=0.5), unix_s=1000.0)
    figures.reported(saved(5), unix_s=1001.0)  # a slower disk
    assert {n: v for n, v in seen(figures, cluster).items() if n.startswith("checkpoint")} == {
        "checkpoint_step j-1": 10,
        "checkpoint_size_bytes j-1": 1000,
        "checkpoint_timestamp_seconds j-1": 1000.0,
        "checkpoint_write_seconds j-1": 0.5,
        "checkpoints_total j-1": 2,
    }
    figures.reported(saved(6, generation=2), unix_s=1002.0)  # steps were lost
    assert seen(figures, cluster)["checkpoint_step j-1"] == 6
    figures.reported(saved(1, job="j-2"), unix_s=1003.0)
    samples = seen(figures, cluster)
    assert (samples["checkpoint_step j-2"], samples["checkpoints_total j-1"]) == (1, 3)
    assert samples["checkpoint_step j-1"] == 6  # it trains beside the other one
    assert "checkpoint_write_seconds j-2" not in samples
