"""Faults of a daemon or a host, and the reports of systemd and the coordinator that must follow."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scripts.systemdcluster.cluster import COORDINATOR, WORKER, Cluster
from scripts.systemdcluster.host import Host, Unit, journal, manager_says, show

_GOES_ON_STEPS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that happens, and its traces.

    Attributes:
        words: for people.
        inflict: does it; whatever systemd does not mend by itself is mended here.
        unit: whose traces are looked at.
        restarts: how often systemd starts the unit again of its own accord.
        systemd_says: pattern of a line in the unit's journal.
        incident: what `dtdctl events` must tell of the worker, or of nobody.
        no_incident: an incident that must not be reported.
        last_end: pattern of how the next process says that the last one ended; empty: in good
            order, or nobody knows.
        in_band: it happens between two steps, so none is begun again.
    """

    words: str
    inflict: Callable[[Cluster, Host], None]
    unit: str = WORKER
    restarts: int = 0
    systemd_says: str
    incident: str
    no_incident: str = ""
    last_end: str = ""
    in_band: bool = False


def _kill(unit: str) -> Callable[[Cluster, Host], None]:
    def inflict(_cluster: Cluster, host: Host) -> None:
        host.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", unit)

    return inflict


def _freeze(_cluster: Cluster, host: Host) -> None:
    host.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", WORKER)


def _stop_worker(cluster: Cluster, host: Host) -> None:
    """Stopped for good; the others continue to train, until it is started again."""
    host.run("systemctl", "stop", WORKER)
    _await_others(cluster)
    host.run("systemctl", "start", WORKER)


def _reboot(_cluster: Cluster, host: Host) -> None:
    host.reboot()


def _cut_power(cluster: Cluster, host: Host) -> None:
    """No kernel says goodbye for the processes that end, either: the cable is out meanwhile."""
    cluster.lan.pull_out(host.name)
    host.cut_power()
    _await_others(cluster)
    cluster.lan.plug_in(host.name)
    host.boot()


def _stop_coordinator(cluster: Cluster, host: Host) -> None:
    """The coordinator cannot be asked meanwhile, so a worker's journal gives the steps."""
    host.run("systemctl", "stop", COORDINATOR)
    before = cluster.committed(host)
    cluster.until(
        lambda: cluster.committed(host) >= before + _GOES_ON_STEPS,
        "nothing is committed while the coordinator is away",
    )
    host.run("systemctl", "start", COORDINATOR)


def _upgrade(cluster: Cluster, _host: Host) -> None:
    """Host after host, as after a new release has been installed on it; workers first."""
    for host in cluster.hosts:
        step = cluster.committed(host)
        host.run("systemctl", "restart", "dtd-workers.target")
        if host is cluster.coordinator:
            host.run("systemctl", "restart", COORDINATOR)
        cluster.await_whole(after_step=step)


def _await_others(cluster: Cluster) -> None:
    """Until all hosts but one train together."""
    step, world = 0, len(cluster.hosts) - 1

    def others_train() -> bool:
        nonlocal step
        job = cluster.status().get("job")
        if job is None or job["world_size"] != world:
            return False
        step = step or job["step"]
        return bool(job["step"] >= step + _GOES_ON_STEPS)

    cluster.until(others_train, "the others do not train on")


_KILLED: Final = r"Failed with result 'signal'"
_HUNG: Final = r"Failed with result 'watchdog'"
_ENDED_WELL: Final = r"Deactivated successfully"

FAULTS: Final = {
    "kill": Fault(
        words="kill -9 of a worker",
        inflict=_kill(WORKER),
        restarts=1,
        systemd_says=_KILLED,
        incident="worker_lost",
        last_end=r"ended by SIGKILL \(systemd: signal\)",
    ),
    "freeze": Fault(
        words="worker stands still (SIGSTOP)",
        inflict=_freeze,
        restarts=1,
        systemd_says=_HUNG,
        incident="worker_lost",
        last_end=r"ended by SIGABRT \(systemd: watchdog\)",
    ),
    "stop": Fault(
        words="systemctl stop of a worker",
        inflict=_stop_worker,
        systemd_says=_ENDED_WELL,
        incident="generation_ending",
        no_incident="worker_lost",
        in_band=True,
    ),
    "reboot": Fault(
        words="reboot of a host",
        inflict=_reboot,
        systemd_says=_ENDED_WELL,
        incident="generation_ending",
        no_incident="worker_lost",
        in_band=True,
    ),
    "power": Fault(
        words="power cut of a host",
        inflict=_cut_power,
        systemd_says=r"Started dtd-worker",
        incident="worker_lost",
    ),
    "coordinator-stop": Fault(
        words="coordinator stopped and started",
        inflict=_stop_coordinator,
        unit=COORDINATOR,
        systemd_says=_ENDED_WELL,
        incident="generation_adopted",
        no_incident="generation_ending",
        in_band=True,
    ),
    "coordinator-kill": Fault(
        words="kill -9 of the coordinator",
        inflict=_kill(COORDINATOR),
        unit=COORDINATOR,
        restarts=1,
        systemd_says=_KILLED,
        incident="generation_adopted",
        no_incident="generation_ending",
        in_band=True,
    ),
    "coordinator-reboot": Fault(
        words="reboot of the coordinator's host",
        inflict=_reboot,
        unit=COORDINATOR,
        systemd_says=_ENDED_WELL,
        incident="generation_adopted",
        no_incident="worker_lost",
        in_band=True,
    ),
    "upgrade": Fault(
        words="rolling upgrade of all hosts",
        inflict=_upgrade,
        systemd_says=_ENDED_WELL,
        incident="generation_adopted",
        no_incident="worker_lost",
        in_band=True,
    ),
}


# --- one fault after the other, and what everybody says of it -------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a fault.

    Attributes:
        fault: in words.
        host: its host.
        detected_after_s: as `dtdctl events` tells it; None: there was nothing to detect.
        recovered_after_s: until a step was committed again, as `dtdctl events` tells it; None:
            training did not stop.
        whole_after_s: until all workers trained together again.
        steps_redone: begun and given up.
        steps_lost: committed and gone.
        disagreements: the reports that lack it, in words.
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
    """Return the costs of the first recovery: a later one is another worker's return."""
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
