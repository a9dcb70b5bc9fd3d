"""Troubles that `dtdctl status` shows: the latest ones, each until it is over.  Pure.

Some can be read off the books at any time, and are over when they cannot any more.  Others are
events, somebody was turned away, and are over when that host succeeds, or long after the last one.
Never more than `MAX_TROUBLES`; the one that was heard of longest ago makes way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from dtd import troubles
from dtd.core.membership.admission import is_aside
from dtd.core.membership.records import Worker
from dtd.core.membership.standstill import why_late
from dtd.core.membership.state import ClusterState
from dtd.core.membership.transitions import WorkerState
from dtd.troubles import Trouble

MAX_TROUBLES: Final = 32
FORGOTTEN_S: Final = 600.0


@dataclass(slots=True)
class _Known:
    trouble: Trouble
    since_s: float
    last_s: float
    standing: bool


class Troubles:
    """The troubles of a cluster; times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def note(self, trouble: Trouble, now: float, *, standing: bool = False) -> bool:
        """Take one down; returns whether it is news.

        Args:
            trouble: what is wrong.
            now: the time.
            standing: it lasts until `stand` is called without it.
        """
        key = trouble.where, trouble.kind
        known = self._known.pop(key, None)
        since_s = now if known is None else known.since_s
        self._known[key] = _Known(trouble, since_s, now, standing)
        while len(self._known) > MAX_TROUBLES:
            self._known.popitem(last=False)
        return known is None or known.trouble.message != trouble.message

    def stand(self, found: Iterable[Trouble], now: float) -> list[Trouble]:
        """These stand now, and no others of their sort; returns those that are news."""
        found = list(found)
        keys = {(one.where, one.kind) for one in found}
        for key, known in list(self._known.items()):
            if known.standing and key not in keys:
                del self._known[key]
        return [one for one in found if self.note(one, now, standing=True)]

    def over(self, *where: str, kind: str = "") -> None:
        """These hosts or workers have succeeded, in what this kind is about or altogether."""
        for key, known in list(self._known.items()):
            if not known.standing and key[0] in where and kind in ("", key[1]):
                del self._known[key]

    def listing(self, now: float) -> list[dict[str, Any]]:
        """As `dtdctl status` shows them, the latest last."""
        for key, known in list(self._known.items()):
            if not known.standing and now - known.last_s > FORGOTTEN_S:
                del self._known[key]
        return [
            {
                "since_s": max(0.0, now - known.since_s),
                "where": known.trouble.where,
                "kind": known.trouble.kind,
                "message": known.trouble.message,
                "remedy": known.trouble.remedy,
            }
            for known in self._known.values()
        ]


def standing(books: ClusterState) -> list[Trouble]:
    """What is wrong now as far as the books tell."""
    refused = [w for w in books.workers.values() if w.state is WorkerState.REFUSED]
    found = [_refused(books, worker) for worker in refused]
    kept = [worker for worker in books.workers.values() if worker.liveness.kept]
    found += [
        troubles.stands_still(w.name, w.registration.host, why_late(w), w.liveness.kept)
        for w in kept
    ]
    for one, other in sorted(books.isolation.links.bad):
        ends = books.workers.get(one), books.workers.get(other)
        if ends[0] is not None and ends[1] is not None:
            narrow = books.isolation.links.is_narrow((one, other))
            tell = troubles.narrow_way if narrow else troubles.no_way
            found.append(tell(one, _at(ends[0]), other, _at(ends[1])))
    return found


def _refused(books: ClusterState, worker: Worker) -> Trouble:
    if is_aside(books, worker):
        failed = books.isolation.set_aside[worker.name].failed
        return troubles.set_aside(
            worker.name, worker.registration.host, failed.reason.partition("\n")[0]
        )
    if not worker.foreign:
        return troubles.unfit(worker.name, worker.registration.host, worker.reason)
    return troubles.versions_differ(
        worker.name,
        worker.registration.host,
        worker.registration.version,
        coordinator_host=books.identity.host,
        ours=books.identity.version,
    )


def _at(worker: Worker) -> str:
    host, port = worker.registration.data_host, worker.registration.data_port
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
