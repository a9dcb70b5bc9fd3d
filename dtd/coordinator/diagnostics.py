"""What is wrong with the coordinator, for `dtdctl status` and `systemctl status`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from dtd import troubles
from dtd.core.membership.events import Effect, Incident
from dtd.core.membership.state import ClusterState
from dtd.core.membership.transitions import GONE
from dtd.core.observe.diagnostics import Troubles, standing
from dtd.errors import DtdError, ErrorCode, ProtocolError

# --- what the coordinator does, in the one line that `systemctl status` shows.  Pure -----------


def status_line(books: ClusterState) -> str:
    """The job, how many workers there are, and how many jobs wait."""
    workers = sum(worker.state not in GONE for worker in books.workers.values())
    words = [_job(books), _count(workers, "worker")]
    if books.queue:
        words.append(f"{_count(len(books.queue), 'job')} queued")
    return ", ".join(words)


def _job(books: ClusterState) -> str:
    job = books.job
    if job is None:
        return "no job"
    return f"job {job.id} {job.state.value} at step {job.step} of {job.total_steps}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# --- the coordinator's troubles: gathers them from all over the daemon for `dtdctl status` -----
#
# What was turned away, what failed and what the books tell goes to `dtd.core.observe.diagnostics`,
# which knows how long each of them lasts.  Decides nothing and sends nothing.


log = structlog.get_logger()

_DISK_INCIDENTS = frozenset({"checkpoint_failed"})
_OWN_DISK = "the coordinator"


class DiagnosticsCollector:
    """Keeps the troubles of this cluster.

    Args:
        books: the membership's.
        now: the clock of the daemon, in seconds.
        disk_failure: why the last call of the store failed; empty when it did not.
    """

    def __init__(
        self, books: ClusterState, now: Callable[[], float], disk_failure: Callable[[], str]
    ) -> None:
        self._books = books
        self._now = now
        self._disk_failure = disk_failure
        self._troubles = Troubles()

    def turned_away(self, host: str, why: str, remedy: str = "") -> None:
        """The control port did not listen to somebody; it has logged that."""
        self._troubles.note(troubles.turned_away(host, why, remedy), self._now())

    def closed(self, host: str, error: DtdError | None) -> None:
        """A connection has ended on which nobody had registered."""
        if isinstance(error, ProtocolError) and error.code is ErrorCode.BAD_VERSION:
            self._troubles.note(troubles.protocol_differs(host, error.message), self._now())

    def name_taken(self, trouble: troubles.Trouble) -> None:
        """Two processes go by one name."""
        if self._troubles.note(trouble, self._now()):
            log.warning("name_taken", message=trouble.message, remedy=trouble.remedy)

    def registered(self, host: str, name: str) -> None:
        """A worker has come through."""
        self._troubles.over(host, name)

    def saved(self, name: str) -> None:
        """A worker's disk takes checkpoints."""
        self._troubles.over(name, kind="disk")

    def decided(self, effect: Effect) -> None:
        """The membership core has an effect; incidents change what stands in the books."""
        if isinstance(effect, Incident) and effect.kind in _DISK_INCIDENTS:
            self._troubles.note(troubles.disk(effect.worker, effect.message), self._now())

    def listing(self) -> list[dict[str, Any]]:
        """The troubles of this moment, as `dtdctl status` shows them."""
        found = standing(self._books)
        failure = self._disk_failure()
        if failure:
            found.append(troubles.disk(_OWN_DISK, failure))
        self._troubles.stand(found, self._now())
        return self._troubles.listing(self._now())
