"""Diagnostics of the coordinator, for `dtdctl status` and `systemctl status`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import structlog

from dtd import diagnostics
from dtd.cluster.diagnostics import Diagnostics, standing
from dtd.cluster.events import Effect, Incident
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import GONE
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.shown import counted

# --- what the coordinator does, in the one line that `systemctl status` shows.  Pure -----------


def status_line(*clusters: ClusterState) -> str:
    """The jobs, how many workers there are, and how many jobs wait."""
    living = (worker.state not in GONE for one in clusters for worker in one.workers.values())
    active = [one for one in clusters if one.job is not None]
    words = [*map(_job, active or clusters[:1]), counted(sum(living), "worker")]
    queued = sum(len(one.queue) for one in clusters)
    if queued:
        words.append(f"{counted(queued, 'job')} queued")
    return ", ".join(words)


def _job(cluster: ClusterState) -> str:
    job = cluster.job
    if job is None:
        return "no job"
    return f"job {job.id} {job.state.value} at step {job.step} of {job.total_steps}"


# --- the coordinator's diagnostics: gathers them from all over the daemon for `dtdctl status` -----
#
# What was turned away, what failed and what the cluster's state tells goes to
# `dtd.cluster.diagnostics`, which knows how long each of them lasts.  Decides nothing and
# sends nothing.


log = structlog.get_logger()

_DISK_INCIDENTS = frozenset({"checkpoint_failed"})
_OWN_DISK = "the coordinator"


class DiagnosticsCollector:
    """Keeps the diagnostics of this cluster.

    Args:
        clusters: gives those of the membership.
        now: the clock of the daemon, in seconds.
        disk_failure: why the last call of the store failed; empty when it did not.
    """

    def __init__(
        self,
        clusters: Callable[[], Iterable[ClusterState]],
        now: Callable[[], float],
        disk_failure: Callable[[], str],
    ) -> None:
        self._clusters = clusters
        self._now = now
        self._disk_failure = disk_failure
        self._diagnostics = Diagnostics()

    def turned_away(self, diagnostic: diagnostics.Diagnostic) -> None:
        """The control port has rejected a caller, and logged that."""
        self._diagnostics.note(diagnostic, self._now())

    def closed(self, host: str, error: DtdError | None) -> None:
        """A connection has ended on which nobody had registered."""
        if isinstance(error, ProtocolError) and error.code is ErrorCode.BAD_VERSION:
            self._diagnostics.note(diagnostics.protocol_differs(host), self._now())

    def name_taken(self, diagnostic: diagnostics.Diagnostic) -> None:
        """Two processes go by one name."""
        if self._diagnostics.note(diagnostic, self._now()):
            log.warning("name_taken", message=diagnostic.message, remedy=diagnostic.remedy)

    def registered(self, host: str, name: str) -> None:
        """A worker has come through."""
        self._diagnostics.over(host, name)

    def saved(self, name: str) -> None:
        """A worker's disk takes checkpoints."""
        self._diagnostics.over(name, kind="disk")

    def decided(self, effect: Effect) -> None:
        """The membership core has an effect; incidents change the cluster's state."""
        if isinstance(effect, Incident) and effect.kind in _DISK_INCIDENTS:
            self._diagnostics.note(diagnostics.disk(effect.worker, effect.message), self._now())

    def listing(self) -> list[dict[str, Any]]:
        """The diagnostics of this moment, as `dtdctl status` shows them."""
        found = [one for cluster in self._clusters() for one in standing(cluster)]
        failure = self._disk_failure()
        if failure:
            found.append(diagnostics.disk(_OWN_DISK, failure))
        self._diagnostics.stand(found, self._now())
        return self._diagnostics.listing(self._now())
