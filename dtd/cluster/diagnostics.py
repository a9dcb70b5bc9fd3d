"""Diagnostics that `dtdctl status` shows: the latest ones, each until it is resolved.  Pure.

Some follow from the cluster's state, and are resolved when they no longer do.  Others are events,
such as a refused caller, and are resolved when that host succeeds, or long after the last one.  At
most `MAX_DIAGNOSTICS` are kept; the least recent is dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from dtd import diagnostics
from dtd.cluster.admission import is_set_aside
from dtd.cluster.records import Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.suspicion import why_late
from dtd.cluster.transitions import WorkerState
from dtd.diagnostics import Diagnostic

MAX_DIAGNOSTICS: Final = 32
FORGOTTEN_S: Final = 600.0


@dataclass(slots=True)
class _Known:
    diagnostic: Diagnostic
    since_s: float
    last_s: float
    standing: bool


class Diagnostics:
    """The diagnostics of a cluster; times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def note(self, diagnostic: Diagnostic, now: float, *, standing: bool = False) -> bool:
        """Record one; returns whether it is new.

        Args:
            diagnostic: the diagnostic.
            now: the time.
            standing: it lasts until `stand` is called without it.
        """
        key = diagnostic.where, diagnostic.kind
        known = self._known.pop(key, None)
        since_s = now if known is None else known.since_s
        self._known[key] = _Known(diagnostic, since_s, now, standing)
        while len(self._known) > MAX_DIAGNOSTICS:
            self._known.popitem(last=False)
        return known is None or known.diagnostic.message != diagnostic.message

    def stand(self, found: Iterable[Diagnostic], now: float) -> list[Diagnostic]:
        """Replace all standing diagnostics by these; returns the new ones."""
        found = list(found)
        keys = {(one.where, one.kind) for one in found}
        for key, known in list(self._known.items()):
            if known.standing and key not in keys:
                del self._known[key]
        return [one for one in found if self.note(one, now, standing=True)]

    def over(self, *where: str, kind: str = "") -> None:
        """Resolve the diagnostics of these hosts or workers, of one kind or of all."""
        for key, known in list(self._known.items()):
            if not known.standing and key[0] in where and kind in ("", key[1]):
                del self._known[key]

    def listing(self, now: float) -> list[dict[str, Any]]:
        """The diagnostics as `dtdctl status` shows them, the latest last."""
        for key, known in list(self._known.items()):
            if not known.standing and now - known.last_s > FORGOTTEN_S:
                del self._known[key]
        return [
            {
                "since_s": max(0.0, now - known.since_s),
                "where": known.diagnostic.where,
                "kind": known.diagnostic.kind,
                "message": known.diagnostic.sentence,
                "remedy": known.diagnostic.remedy,
            }
            for known in self._known.values()
        ]


def standing(cluster: ClusterState) -> list[Diagnostic]:
    """The diagnostics that follow from the cluster's state now."""
    refused = [w for w in cluster.workers.values() if w.state is WorkerState.INCOMPATIBLE]
    found = [_refused(cluster, worker) for worker in refused]
    kept = [worker for worker in cluster.workers.values() if worker.liveness.kept]
    found += [
        diagnostics.stands_still(w.name, w.registration.host, why_late(w), w.liveness.kept)
        for w in kept
    ]
    return found + _bad_links(cluster)


def _bad_links(cluster: ClusterState) -> list[Diagnostic]:
    found, links = [], cluster.links
    one_way = links.one_way()
    for pair in sorted(links.bad):
        one, other = (cluster.workers.get(name) for name in pair)
        if one is None or other is None:
            continue
        if pair in one_way:
            by, of = (one, other) if one_way[pair] == one.name else (other, one)
            found.append(diagnostics.one_way(by.name, of.name, _at(of)))
            continue
        tell = diagnostics.narrow_way if links.is_narrow(pair) else diagnostics.no_way
        found.append(tell(one.name, _at(one), other.name, _at(other)))
    return found


def _refused(cluster: ClusterState, worker: Worker) -> Diagnostic:
    if is_set_aside(cluster, worker):
        failed = cluster.set_aside[worker.name].failed
        return diagnostics.set_aside(
            worker.name, worker.registration.host, failed.reason.partition("\n")[0]
        )
    if not worker.foreign:
        return diagnostics.unfit(worker.name, worker.registration.host, worker.reason)
    return diagnostics.versions_differ(
        worker.name,
        worker.registration.host,
        worker.registration.version,
        coordinator_host=cluster.identity.host,
        ours=cluster.identity.version,
    )


def _at(worker: Worker) -> str:
    host, port = worker.registration.data_host, worker.registration.data_port
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
