"""Inflict one fault after the other, and compare what everybody says of it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from scripts.systemdcluster.cluster import WORKER, Cluster
from scripts.systemdcluster.faults import Fault
from scripts.systemdcluster.host import Host
from scripts.systemdcluster.witnesses import Unit, journal, manager_says, show


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a fault.

    Attributes:
        fault: in words.
        host: where it happened.
        detected_after_s: as `dtdctl events` tells it; None: there was nothing to detect.
        recovered_after_s: until a step was committed again, as `dtdctl events` tells it; None:
            training did not stop.
        whole_after_s: until all workers trained together again.
        steps_redone: begun and given up.
        steps_lost: committed and gone.
        disagreements: who has not told what happened, in words.
    """

    fault: str
    host: str
    detected_after_s: float | None
    recovered_after_s: float | None
    whole_after_s: float
    steps_redone: int
    steps_lost: int
    disagreements: tuple[str, ...]


_LOOKED_BACK_S: Final = 0.001


def inflict(cluster: Cluster, fault: Fault, host: Host) -> Outcome:
    """Do it to a cluster that is whole, and wait until it is whole again.

    Raises:
        DtdError: it does not become whole in time.
    """
    before = show(host, fault.unit)
    seen = max(event["seq"] for event in cluster.events())
    step = cluster.committed(cluster.coordinator)
    began_s = time.time()
    fault.inflict(cluster, host)
    cluster.await_changed(host, fault.unit, before)
    cluster.await_whole(after_step=step)
    whole_s = time.time()
    told = cluster.events(after=seen)
    costs = _costs(told, cluster.worker(host))
    return Outcome(
        fault=fault.words,
        host=host.name,
        detected_after_s=costs.get("detected_after_s"),
        recovered_after_s=costs.get("recovered_after_s"),
        whole_after_s=whole_s - began_s,
        steps_redone=_total(told, "steps_redone"),
        steps_lost=_total(told, "steps_lost"),
        disagreements=tuple(_disagreements(cluster, fault, host, before, told, began_s)),
    )


def _costs(told: Sequence[dict[str, Any]], worker: str) -> dict[str, Any]:
    """Of the first recovery: from the fault itself; a later one is somebody's return."""
    recoveries = [event for event in told if event["kind"] == "recovered"]
    of_worker = [event for event in recoveries if event["worker"] == worker]
    return dict((of_worker or recoveries)[0]["details"]) if recoveries else {}


def _total(told: Sequence[dict[str, Any]], figure: str) -> int:
    return sum(event["details"].get(figure, 0) for event in told if event["kind"] == "recovered")


# --- do they agree? ----------------------------------------------------------------------------


def _disagreements(
    cluster: Cluster,
    fault: Fault,
    host: Host,
    before: Unit,
    told: Sequence[dict[str, Any]],
    began_s: float,
) -> list[str]:
    written = journal(host, fault.unit, since_s=began_s - _LOOKED_BACK_S)
    now, status = show(host, fault.unit), cluster.status()
    restarts = before.restarts + fault.restarts if fault.restarts else 0
    kinds = {event["kind"] for event in told}
    crashes = [event["message"] for event in told if event["kind"] == "worker_crashed"]
    pid = _pid_by_dtdctl(cluster, fault, host, status)
    started = [e.pid for e in written if e.event in ("worker_started", "coordinator_listening")]
    statements = {
        f"systemd has restarted it {now.restarts} times, not {restarts}": now.restarts == restarts,
        f"systemd says {now.active}, {now.result}": (now.active, now.result)
        == ("active", "success"),
        f"the journal has no line of systemd's like {fault.systemd_says!r}": manager_says(
            written, fault.systemd_says
        ),
        f"the journal has process {started}, systemd {now.pid}, dtdctl {pid}": started[-1:]
        == [now.pid]
        and pid in (None, now.pid),
        f"dtdctl events tells {sorted(kinds)}, but no {fault.incident}": fault.incident in kinds,
        f"dtdctl events tells of {fault.no_incident}": fault.no_incident not in kinds,
        f"nobody says that the process {fault.last_end}, but {crashes}": not fault.last_end
        or any(re.search(fault.last_end, text) for text in crashes),
        "steps were begun again": not fault.in_band or _total(told, "steps_redone") == 0,
        f"systemctl status says {now.status!r}, not {cluster.job}": cluster.job in now.status,
        "steps are lost": status["job"]["steps_lost"] == 0,
    }
    return [text for text, holds in statements.items() if not holds]


def _pid_by_dtdctl(
    cluster: Cluster, fault: Fault, host: Host, status: dict[str, Any]
) -> int | None:
    if fault.unit != WORKER:
        return None
    return next(int(w["pid"]) for w in status["workers"] if w["name"] == cluster.worker(host))
