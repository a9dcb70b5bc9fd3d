"""A heartbeat as samples: every figure that it has, and none that it has not."""

from __future__ import annotations

from dtd.observe.metrics.worker import (
    worker_samples,
)
from dtd.wire import messages as m

TRAINING = m.Heartbeat(
    state="running",
    job="j-1",
    generation=3,
    step=12,
    loss=0.5,
    samples_per_s=640.0,
    step_s=0.1,
    data_s=0.01,
    compute_s=0.07,
    comm_s=0.05,
    exposed_s=0.02,
    optimizer_s=0.005,
    own_s=0.08,
    memory_bytes=1000,
    learning_rate=0.25,
    grad_norm=1.5,
    cpu_s=9.0,
    sent_bytes=300,
    plain_bytes=400,
    received_bytes=200,
    rtt_s=0.001,
    link_bytes_per_s=5000.0,
)


def figures(beat: m.Heartbeat, peer: str = "w-1") -> dict[str, float]:
    samples = list(worker_samples("w-0", peer, beat))
    assert len({sample.name for sample in samples}) == len(samples)
    for sample in samples:
        link = sample.name.startswith("dtd_link_")
        assert sample.labels == (("w-0", peer) if link else ("w-0",))
    return {sample.name.removeprefix("dtd_"): sample.value for sample in samples}


def test_a_worker_that_trains() -> None:
    assert figures(TRAINING) == {
        "worker_step": 12,
        "worker_generation": 3,
        "worker_loss": 0.5,
        "worker_learning_rate": 0.25,
        "worker_gradient_norm": 1.5,
        "worker_samples_per_second": 640.0,
        "worker_step_seconds": 0.1,
        "worker_data_seconds": 0.01,
        "worker_compute_seconds": 0.07,
        "worker_communication_seconds": 0.05,
        "worker_exposed_communication_seconds": 0.02,
        "worker_optimizer_seconds": 0.005,
        "worker_own_seconds": 0.08,
        "worker_stalled_seconds": 0.0,
        "worker_sent_bytes_total": 300,
        "worker_plain_bytes_total": 400,
        "worker_received_bytes_total": 200,
        "link_round_trip_seconds": 0.001,
        "link_bytes_per_second": 5000.0,
        "worker_cpu_seconds_total": 9.0,
        "worker_resident_memory_bytes": 1000,
    }


def test_memory_by_part() -> None:
    part = m.MemoryPart(name="optimizer", measured_bytes=12, predicted_bytes=10)
    peak = m.MemoryPart(name="activations", measured_bytes=7)
    beat = m.Heartbeat(
        state="running", memory=(part, peak, m.MemoryPart(name="x", measured_bytes=1))
    )
    found = {s.name: {} for s in worker_samples("w", "", beat)}
    for sample in worker_samples("w", "", beat):
        found[sample.name][sample.labels] = sample.value
    measured = {("w", "optimizer"): 12, ("w", "activations"): 7}
    assert found["dtd_worker_part_memory_bytes"] == measured
    assert found["dtd_worker_predicted_memory_bytes"] == {("w", "optimizer"): 10}
