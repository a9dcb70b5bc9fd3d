"""Every metric that dtd exposes: its name, kind, labels and meaning.

docs/metrics.md is written from this, the endpoints take types and help texts from it, and a test
holds the dashboard against it.  Names follow the customs of Prometheus: base units, `_total` on
what only grows.  Labels are `job`, `worker`, `peer` and `kind`; their values are bounded by the
cluster and by the job, never by the number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Kind = Literal["gauge", "counter"]

BOTH: Final = ("coordinator", "worker")
COORDINATOR: Final = ("coordinator",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        kind: a counter only grows while its daemon lives.
        labels: in the order of a sample's values.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    served_by: tuple[str, ...]


class Sample(NamedTuple):
    """One value of a metric; immutable, so any thread may read it."""

    name: str
    labels: tuple[str, ...]
    value: float


def _metric(name: str, labels: str, served_by: tuple[str, ...], meaning: str) -> Metric:
    kind: Kind = "counter" if name.endswith("_total") else "gauge"
    return Metric(
        name=name, kind=kind, labels=tuple(labels.split()), meaning=meaning, served_by=served_by
    )


METRICS: Final = (
    # the job
    _metric("dtd_job_step", "job", COORDINATOR, "Committed steps."),
    _metric("dtd_job_planned_steps", "job", COORDINATOR, "Steps after which the job is done."),
    _metric("dtd_job_epoch", "job", COORDINATOR, "Epoch of the last committed step."),
    _metric("dtd_job_loss", "job", COORDINATOR, "Mean loss over the last global batch."),
    _metric("dtd_job_learning_rate", "job", COORDINATOR, "Learning rate of that step."),
    _metric("dtd_job_gradient_norm", "job", COORDINATOR, "Gradient norm before clipping."),
    _metric("dtd_job_samples_per_second", "job", COORDINATOR, "Rows trained per second."),
    _metric("dtd_job_generation", "job", COORDINATOR, "Number of the newest generation."),
    _metric("dtd_job_world_size", "job", COORDINATOR, "Workers in the generation."),
    _metric(
        "dtd_job_skipped_steps_total",
        "job",
        COORDINATOR,
        "Steps committed without an update, because gradients were not finite.",
    ),
    _metric("dtd_job_lost_steps_total", "job", COORDINATOR, "Committed steps that were lost."),
    _metric(
        "dtd_job_evaluation",
        "job kind",
        COORDINATOR,
        "Result of the last evaluation; `kind` is the task's name for it.",
    ),
    # checkpoints
    _metric("dtd_checkpoint_step", "job", COORDINATOR, "Step of the newest checkpoint."),
    _metric("dtd_checkpoint_size_bytes", "job", COORDINATOR, "Size of the newest checkpoint."),
    _metric(
        "dtd_checkpoint_write_seconds",
        "job",
        COORDINATOR,
        "How long its worker took to write it, in the background.",
    ),
    _metric(
        "dtd_checkpoint_timestamp_seconds",
        "job",
        COORDINATOR,
        "Unix time at which the coordinator learned of it; its age is `time()` minus this.",
    ),
    _metric("dtd_checkpoints_total", "job", COORDINATOR, "Checkpoints that workers have reported."),
    # one worker
    _metric("dtd_worker_step", "worker", BOTH, "Steps that the worker has committed."),
    _metric("dtd_worker_generation", "worker", BOTH, "Generation in which it is a member."),
    _metric("dtd_worker_loss", "worker", BOTH, "Loss of its last step; equal on all workers."),
    _metric("dtd_worker_learning_rate", "worker", BOTH, "Learning rate of its last step."),
    _metric("dtd_worker_gradient_norm", "worker", BOTH, "Gradient norm of its last step."),
    _metric(
        "dtd_worker_samples_per_second", "worker", BOTH, "Rows of a worker's share per second."
    ),
    _metric("dtd_worker_step_seconds", "worker", BOTH, "Duration of a step, from start to end."),
    _metric("dtd_worker_data_seconds", "worker", BOTH, "Time of a step waiting for data."),
    _metric(
        "dtd_worker_compute_seconds", "worker", BOTH, "Duration of forward and backward in a step."
    ),
    _metric(
        "dtd_worker_communication_seconds",
        "worker",
        BOTH,
        "Time of a step during which something was on the wire.",
    ),
    _metric(
        "dtd_worker_exposed_communication_seconds",
        "worker",
        BOTH,
        "The part of that time during which training waited.",
    ),
    _metric("dtd_worker_optimizer_seconds", "worker", BOTH, "Time of the optimizer in a step."),
    _metric(
        "dtd_worker_own_seconds",
        "worker",
        BOTH,
        "Time of a step in which it does not wait for other workers.",
    ),
    _metric(
        "dtd_worker_stalled_seconds", "worker", BOTH, "Time since training last made progress."
    ),
    _metric(
        "dtd_worker_sent_bytes_total",
        "worker",
        BOTH,
        "Payload sent to its next ring neighbour; nothing where it is read in shared memory.",
    ),
    _metric(
        "dtd_worker_plain_bytes_total",
        "worker",
        BOTH,
        "The same payload before it was coded without loss; equal where nothing is coded.",
    ),
    _metric(
        "dtd_worker_received_bytes_total",
        "worker",
        BOTH,
        "Received from its previous ring neighbour.",
    ),
    _metric(
        "dtd_link_round_trip_seconds",
        "worker peer",
        BOTH,
        "Round-trip time from the worker to its next neighbour, as the kernel measures it.",
    ),
    _metric(
        "dtd_link_bytes_per_second",
        "worker peer",
        BOTH,
        "Bytes sent to that neighbour for each second in which something was on the wire.",
    ),
    _metric("dtd_worker_cpu_seconds_total", "worker", BOTH, "CPU time of the worker's process."),
    _metric("dtd_worker_resident_memory_bytes", "worker", BOTH, "Memory of its process."),
    _metric("dtd_worker_gpu_use_ratio", "worker", BOTH, "Share of time in which its GPU is busy."),
    _metric("dtd_worker_gpu_memory_bytes", "worker", BOTH, "GPU memory that its torch holds."),
    _metric(
        "dtd_worker_part_memory_bytes",
        "worker kind",
        BOTH,
        "Memory of a part of the training, measured in an early step of the generation; `kind` is "
        "parameters, gradients, optimizer, activations, buckets, snapshots or process.",
    ),
    _metric(
        "dtd_worker_predicted_memory_bytes",
        "worker kind",
        BOTH,
        "What the job's strategy needs of it by calculation.",
    ),
    _metric(
        "dtd_worker_heartbeat_age_seconds", "worker", COORDINATOR, "Time since its last message."
    ),
    _metric(
        "dtd_worker_restarts_total",
        "worker",
        COORDINATOR,
        "Times that it returned as a new process without having been released.",
    ),
    _metric(
        "dtd_worker_evictions_total", "worker", COORDINATOR, "Times that it was evicted as dead."
    ),
    _metric(
        "dtd_reports_dropped_total",
        "worker kind",
        COORDINATOR,
        "Lines and notices that were left out, because they exceeded the worker's quota.",
    ),
    # the cluster
    _metric("dtd_workers", "kind", COORDINATOR, "Known workers by state."),
    _metric("dtd_incidents_total", "kind", COORDINATOR, "Incidents; see docs/events.md."),
    _metric("dtd_queued_jobs", "", COORDINATOR, "Jobs that wait in the queue."),
    _metric(
        "dtd_coordinator_uptime_seconds", "", COORDINATOR, "Time since the coordinator started."
    ),
    _metric(
        "dtd_store_errors_total", "", COORDINATOR, "Writes and reads of its store that failed."
    ),
    _metric(
        "dtd_certificate_expiry_timestamp_seconds",
        "",
        BOTH,
        "Unix time at which the daemon's certificate expires; absent without one.",
    ),
)

BY_NAME: Final = {metric.name: metric for metric in METRICS}
