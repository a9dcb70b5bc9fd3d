"""What is done to a daemon or a host, and what systemd and the coordinator must then say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from scripts.systemdcluster.cluster import COORDINATOR, WORKER, Cluster
from scripts.systemdcluster.host import Host

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
        no_incident: what it must not tell.
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
    """Stopped for good; the others train on, until somebody starts it again."""
    host.run("systemctl", "stop", WORKER)
    _await_others(cluster)
    host.run("systemctl", "start", WORKER)


def _reboot(_cluster: Cluster, host: Host) -> None:
    host.reboot()


def _cut_power(cluster: Cluster, host: Host) -> None:
    """Nor does a kernel say goodbye for the processes that end: the cable is out meanwhile."""
    cluster.lan.pull_out(host.name)
    host.cut_power()
    _await_others(cluster)
    cluster.lan.plug_in(host.name)
    host.boot()


def _stop_coordinator(cluster: Cluster, host: Host) -> None:
    """Nobody can ask it meanwhile, so it is a worker's own words that tell of steps."""
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
        last_end=r"was ended by systemd's watchdog",
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
