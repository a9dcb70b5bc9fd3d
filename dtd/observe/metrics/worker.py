"""Metrics of a worker's process; figures of its GPU come from torch.

torch is never imported here: a process that has not imported it holds nothing of a GPU.  Asking the
driver can take milliseconds, so this does not belong on the event loop.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dtd.address import Address
from dtd.doctor.memory import memory_of
from dtd.observe.metrics.catalogue import Sample
from dtd.observe.metrics.endpoint import Context, Exposition
from dtd.wire import messages as m

NO_GPU: Final = (-1.0, 0)


def gpu_figures(device: str) -> tuple[float, int]:
    """The share of time in which "cuda:N" worked, negative if unknown; bytes that torch holds."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    initialized = getattr(cuda, "is_initialized", None)  # absent while torch is being imported
    if not device.startswith("cuda:") or initialized is None or not initialized():
        return NO_GPU
    index = int(device.partition(":")[2])
    return _use(cuda, index), int(cuda.memory_reserved(index))


def _use(cuda: Any, index: int) -> float:
    try:
        return float(cuda.utilization(index)) / 100
    except Exception:  # noqa: BLE001 - the library may be missing, the driver may refuse
        return -1.0


GPU_EVERY_S: Final = 2.0


class WorkerMetrics:
    """The measurements of a worker's process.

    Attributes:
        certificate_expires_s: Unix time; None without a certificate.
    """

    def __init__(
        self, worker: str, device: str, address: Address | None, context: Context | None = None
    ) -> None:
        self.certificate_expires_s: float | None = None
        self._worker = worker
        self._device = device
        self._gpu = NO_GPU
        self.exposition = Exposition(address, context)

    async def keep(self) -> None:
        """Read the GPU's figures periodically until cancelled; returns at once without a GPU."""
        while self._device != "cpu":
            self._gpu = await asyncio.to_thread(gpu_figures, self._device)
            await asyncio.sleep(GPU_EVERY_S)

    def heartbeat_fields(self) -> dict[str, Any]:
        use, memory_bytes = self._gpu
        return {"cpu_s": time.process_time(), "gpu_use": use, "gpu_memory_bytes": memory_bytes}

    def publish(self, beat: m.Heartbeat, roster: Sequence[m.Member]) -> None:
        """Publish the figures of a heartbeat; the roster is empty when the worker is in no ring."""
        if self.exposition.address is None:
            return
        peer = next_in_ring([one.name for one in roster], self._worker)
        samples = [*worker_samples(self._worker, peer, beat)]
        if self.certificate_expires_s is not None:
            expires_s = self.certificate_expires_s
            samples.append(Sample("dtd_certificate_expiry_timestamp_seconds", (), expires_s))
        self.exposition.publish(samples)


def next_in_ring(roster: Sequence[str], name: str) -> str:
    """Return a member's next one; empty for a ring of one, and for workers not in it."""
    if len(roster) < 2 or name not in roster:
        return ""
    return roster[(roster.index(name) + 1) % len(roster)]


def worker_samples(worker: str, peer: str, beat: m.Heartbeat) -> Iterator[Sample]:
    """Samples of a heartbeat, for the worker's own endpoint and for the coordinator's.

    `peer` is its next neighbour in the ring; empty when it has none.
    """
    labels, link = (worker,), (worker, peer)
    yield from _samples(_ALWAYS, labels, beat)
    if beat.gpu_memory_bytes > 0:
        yield Sample("dtd_worker_gpu_memory_bytes", labels, beat.gpu_memory_bytes)
    if beat.gpu_use >= 0:
        yield Sample("dtd_worker_gpu_use_ratio", labels, beat.gpu_use)
    if peer and beat.rtt_s > 0:
        yield Sample("dtd_link_round_trip_seconds", link, beat.rtt_s)
    if peer and beat.link_bytes_per_s > 0:
        yield Sample("dtd_link_bytes_per_second", link, beat.link_bytes_per_s)
    for part, found in (memory_of(beat.memory) or {}).items():
        yield Sample("dtd_worker_part_memory_bytes", (worker, part), found["measured_bytes"] or 0)
        if found["predicted_bytes"] is not None:
            predicted = found["predicted_bytes"]
            yield Sample("dtd_worker_predicted_memory_bytes", (worker, part), predicted)
    if beat.generation:
        yield from _samples(_OF_A_MEMBER, labels, beat)
    if beat.step_s > 0:
        yield from _samples(_OF_A_STEP, labels, beat)


def _samples(
    table: Mapping[str, str], labels: tuple[str, ...], beat: m.Heartbeat
) -> Iterator[Sample]:
    for name, field in table.items():
        yield Sample(f"dtd_worker_{name}", labels, getattr(beat, field))


# Metrics of a worker, and the fields of its heartbeat.
_ALWAYS: Final = {
    "cpu_seconds_total": "cpu_s",
    "resident_memory_bytes": "memory_bytes",
    "sent_bytes_total": "sent_bytes",
    "plain_bytes_total": "plain_bytes",
    "received_bytes_total": "received_bytes",
}
_OF_A_MEMBER: Final = {"generation": "generation", "stalled_seconds": "stalled_s"}
_OF_A_STEP: Final = {
    "step": "step",
    "loss": "loss",
    "learning_rate": "learning_rate",
    "gradient_norm": "grad_norm",
    "samples_per_second": "samples_per_s",
    "step_seconds": "step_s",
    "data_seconds": "data_s",
    "compute_seconds": "compute_s",
    "communication_seconds": "comm_s",
    "exposed_communication_seconds": "exposed_s",
    "optimizer_seconds": "optimizer_s",
    "own_seconds": "own_s",
}
