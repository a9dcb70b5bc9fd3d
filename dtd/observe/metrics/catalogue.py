"""Every metric that dtd exposes: its name, kind, labels and meaning.

docs/metrics.md is written from this, the endpoints take types and help texts from it, and a test
holds the dashboard against it.  Names follow the customs of Prometheus: base units, `_total` on
what only grows.  Labels are `job`, `worker`, `peer` and `kind`; their values are bounded by the
cluster and by the job, never by the number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

BOTH: Final = ("coordinator", "worker")
COORDINATOR: Final = ("coordinator",)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; the values of a sample's labels are in the order of `label_names`."""

    name: str
    label_names: str
    served_by: tuple[str, ...]
    meaning: str

    @property
    def kind(self) -> Literal["gauge", "counter"]:
        """A counter only grows while its daemon lives."""
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.label_names.split())


class Sample(NamedTuple):
    """One value of a metric; immutable, so any thread may read it."""

    name: str
    labels: tuple[str, ...]
    value: float


METRICS: Final = (
    # the job
    Metric("dtd_job_step", "job", COORDINATOR, "Committed steps."),
    Metric("dtd_job_planned_steps", "job", COORDINATOR, "Steps after which the job is done."),
    Metric("dtd_job_epoch", "job", COORDINATOR, "Epoch of the last committed step."),
    Metric("dtd_job_loss", "job", COORDINATOR, "Mean loss over the last global batch."),
    Metric("dtd_job_learning_rate", "job", COORDINATOR, "Learning rate of that step."),
    Metric("dtd_job_gradient_norm", "job", COORDINATOR, "Gradient norm before clipping."),
    Metric("dtd_job_samples_per_second", "job", COORDINATOR, "Rows trained per second."),
    Metric("dtd_job_generation", "job", COORDINATOR, "Number of the newest generation."),
    Metric("dtd_job_world_size", "job", COORDINATOR, "Workers in the generation."),
    Metric(
        "dtd_job_skipped_steps_total",
        "job",
        COORDINATOR,
        "Steps committed without an update, because gradients were not finite.",
    ),
    Metric("dtd_job_lost_steps_total", "job", COORDINATOR, "Committed steps that were lost."),
    Metric(
        "dtd_job_evaluation",
        "job kind",
        COORDINATOR,
        "Result of the last evaluation; `kind` is the task's name for it.",
    ),
    # checkpoints
    Metric("dtd_checkpoint_step", "job", COORDINATOR, "Step of the newest checkpoint."),
    Metric("dtd_checkpoint_size_bytes", "job", COORDINATOR, "Size of the newest checkpoint."),
    Metric(
        "dtd_checkpoint_write_seconds",
        "job",
        COORDINATOR,
        "How long its worker took to write it, in the background.",
    ),
    Metric(
        "dtd_checkpoint_timestamp_seconds",
        "job",
        COORDINATOR,
        "Unix time at which the coordinator learned of it; its age is `time()` minus this.",
    ),
    Metric("dtd_checkpoints_total", "job", COORDINATOR, "Checkpoints that workers have reported."),
    # one worker
    Metric("dtd_worker_step", "worker", BOTH, "Steps that the worker has committed."),
    Metric("dtd_worker_generation", "worker", BOTH, "Generation in which it is a member."),
    Metric("dtd_worker_loss", "worker", BOTH, "Loss of its last step; equal on all workers."),
    Metric("dtd_worker_learning_rate", "worker", BOTH, "Learning rate of its last step."),
    Metric("dtd_worker_gradient_norm", "worker", BOTH, "Gradient norm of its last step."),
    Metric("dtd_worker_samples_per_second", "worker", BOTH, "Rows of a worker's share per second."),
    Metric("dtd_worker_step_seconds", "worker", BOTH, "Duration of a step, from start to end."),
    Metric("dtd_worker_data_seconds", "worker", BOTH, "Time of a step waiting for data."),
    Metric(
        "dtd_worker_compute_seconds", "worker", BOTH, "Duration of forward and backward in a step."
    ),
    Metric(
        "dtd_worker_communication_seconds",
        "worker",
        BOTH,
        "Time of a step during which something was on the wire.",
    ),
    Metric(
        "dtd_worker_exposed_communication_seconds",
        "worker",
        BOTH,
        "The part of that time during which training waited.",
    ),
    Metric("dtd_worker_optimizer_seconds", "worker", BOTH, "Time of the optimizer in a step."),
    Metric(
        "dtd_worker_own_seconds",
        "worker",
        BOTH,
        "Time of a step in which it does not wait for other workers.",
    ),
    Metric("dtd_worker_stalled_seconds", "worker", BOTH, "Time since training last made progress."),
    Metric(
        "dtd_worker_sent_bytes_total",
        "worker",
        BOTH,
        "Payload sent to its next ring neighbour; nothing where it is read in shared memory.",
    ),
    Metric(
        "dtd_worker_plain_bytes_total",
        "worker",
        BOTH,
        "The same payload before it was coded without loss; equal where nothing is coded.",
    ),
    Metric(
        "dtd_worker_received_bytes_total",
        "worker",
        BOTH,
        "Received from its previous ring neighbour.",
    ),
    Metric(
        "dtd_link_round_trip_seconds",
        "worker peer",
        BOTH,
        "Round-trip time from the worker to its next neighbour, as the kernel measures it.",
    ),
    Metric(
        "dtd_link_bytes_per_second",
        "worker peer",
        BOTH,
        "Bytes sent to that neighbour for each second in which something was on the wire.",
    ),
    Metric("dtd_worker_cpu_seconds_total", "worker", BOTH, "CPU time of the worker's process."),
    Metric("dtd_worker_resident_memory_bytes", "worker", BOTH, "Memory of its process."),
    Metric("dtd_worker_gpu_use_ratio", "worker", BOTH, "Share of time in which its GPU is busy."),
    Metric("dtd_worker_gpu_memory_bytes", "worker", BOTH, "GPU memory that its torch holds."),
    Metric(
        "dtd_worker_part_memory_bytes",
        "worker kind",
        BOTH,
        "Memory of a part of the training, measured in an early step of the generation; `kind` is "
        "parameters, gradients, optimizer, activations, buckets, snapshots or process.",
    ),
    Metric(
        "dtd_worker_predicted_memory_bytes",
        "worker kind",
        BOTH,
        "The part of it that the job's strategy needs by calculation.",
    ),
    Metric(
        "dtd_worker_heartbeat_age_seconds", "worker", COORDINATOR, "Time since its last message."
    ),
    Metric(
        "dtd_worker_restarts_total",
        "worker",
        COORDINATOR,
        "Times that it returned as a new process without having been released.",
    ),
    Metric(
        "dtd_worker_evictions_total", "worker", COORDINATOR, "Times that it was evicted as dead."
    ),
    Metric(
        "dtd_reports_dropped_total",
        "worker kind",
        COORDINATOR,
        "Lines and notices that were left out, because they exceeded the worker's quota.",
    ),
    # the cluster
    Metric("dtd_workers", "kind", COORDINATOR, "Known workers by state."),
    Metric("dtd_incidents_total", "kind", COORDINATOR, "Incidents; see docs/events.md."),
    Metric("dtd_queued_jobs", "", COORDINATOR, "Jobs that wait in the queue."),
    Metric(
        "dtd_coordinator_uptime_seconds", "", COORDINATOR, "Time since the coordinator started."
    ),
    Metric("dtd_store_errors_total", "", COORDINATOR, "Writes and reads of its store that failed."),
    Metric(
        "dtd_certificate_expiry_timestamp_seconds",
        "",
        BOTH,
        "Unix time at which the daemon's certificate expires; absent without one.",
    ),
)

BY_NAME: Final = {metric.name: metric for metric in METRICS}
