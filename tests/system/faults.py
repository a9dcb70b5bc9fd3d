"""Faults of daemons and hosts, and the reports of systemd and the coordinator that must follow.

`run` installs dtd on all hosts, trains, does one fault after the other to a cluster that is whole,
and compares all records of what happened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dtd.errors import DtdError
from dtd.event_names import INCIDENTS
from scripts.markdown import table
from tests.system.cluster import COORDINATOR, WORKER, Cluster
from tests.system.host import Host, Unit, journal, show

_GOES_ON_STEPS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault and its traces.

    Attributes:
        words: for people.
        inflict: does it; whatever systemd does not mend by itself is mended here.
        unit: it is looked at.
        restarts: how often systemd starts the unit again of its own accord.
        systemd_says: pattern of a line in the unit's journal.
        incident: what `dtdctl events` must report.
        no_incident: an incident that must not be reported.
        last_end: pattern of how the next process says that the last one ended.
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


# --- a whole run ----------------------------------------------------------------------------------

STEPS: Final = 2000
PAUSE_MS: Final = 300.0
_FINISH_S: Final = 300.0
_LOOKED_BACK_S: Final = 0.001
_COSTS: Final = ("detected_after_s", "recovered_after_s", "steps_redone", "steps_lost")


def run(cluster: Cluster, faults: Sequence[Fault]) -> tuple[str, list[str]]:
    """Do all of it; returns a table, and everything that is not as it must be.

    Raises:
        DtdError: something cannot be done, or does not come to its end in time.
    """
    cluster.install()
    cluster.submit(steps=STEPS, pause_ms=PAUSE_MS)
    rows: list[list[str]] = []
    problems: list[str] = []
    for fault in faults:
        host = cluster.coordinator if fault.unit == COORDINATOR else cluster.operator
        costs, found = inflict(cluster, fault, host)
        rows.append([fault.words, host.name, *costs])
        problems += [f"{fault.words}: {text}" for text in found]
    before = [show(host, WORKER) for host in cluster.hosts]
    job = cluster.finish(timeout_s=_FINISH_S)
    idle = [dataclasses.replace(one, status="waits for a job") for one in before]
    cluster.until(
        lambda: [show(host, WORKER) for host in cluster.hosts] == idle,
        "the workers do not wait for the next job as the processes that they were",
    )
    head = ("fault", "host", *_COSTS, "whole after")
    return table(head, rows), [*problems, *_audit(cluster, job)]


def inflict(cluster: Cluster, fault: Fault, host: Host) -> tuple[list[str], list[str]]:
    """Do it to a cluster that is whole, and wait until it is whole again.

    Returns:
        its costs, and the reports that lack it, in words

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
    whole_s = time.time() - began_s
    cluster.until(
        lambda: cluster.job in show(host, fault.unit).status,
        f"systemctl status of {fault.unit} does not name {cluster.job}",
    )
    reported = cluster.events(after=seen)
    # A later recovery is another worker's return.
    recoveries = [event for event in reported if event["kind"] == "recovered"]
    of_worker = [event for event in recoveries if event["worker"] == cluster.worker(host)]
    details = (of_worker or recoveries or [{"details": {}}])[0]["details"]
    costs = [str(details.get(name, "-")) for name in _COSTS]
    problems = _disagreements(cluster, fault, host, before, reported, began_s)
    return [*costs, f"{whole_s:.1f} s"], problems


def _disagreements(
    cluster: Cluster,
    fault: Fault,
    host: Host,
    before: Unit,
    reported: Sequence[dict[str, Any]],
    began_s: float,
) -> list[str]:
    written = journal(host, fault.unit, since_s=began_s - _LOOKED_BACK_S)
    now, status = show(host, fault.unit), cluster.status()
    restarts = before.restarts + fault.restarts if fault.restarts else 0
    kinds = {event["kind"] for event in reported}
    crashes = [event["message"] for event in reported if event["kind"] == "worker_crashed"]
    redone = sum(event["details"].get("steps_redone", 0) for event in reported)
    pids = {worker["name"]: int(worker["pid"]) for worker in status["workers"]}
    pid = pids[cluster.worker(host)] if fault.unit == WORKER else now.pid
    started = [e.pid for e in written if e.event in ("worker_started", "coordinator_listening")]
    statements = {
        f"systemd has restarted it {now.restarts} times, not {restarts}": now.restarts == restarts,
        f"systemd says {now.active}, {now.result}": (now.active, now.result)
        == ("active", "success"),
        f"the journal has no line of systemd's like {fault.systemd_says!r}": any(
            entry.by_manager and re.search(fault.systemd_says, entry.text) for entry in written
        ),
        f"the journal has process {started}, systemd {now.pid}, dtdctl {pid}": started[-1:]
        == [now.pid]
        and pid == now.pid,
        f"dtdctl events has {sorted(kinds)}, but no {fault.incident}": fault.incident in kinds,
        f"dtdctl events has {fault.no_incident}": fault.no_incident not in kinds,
        f"no report says that the process {fault.last_end}, but {crashes}": not fault.last_end
        or any(re.search(fault.last_end, text) for text in crashes),
        "steps were begun again": not fault.in_band or redone == 0,
        "steps are lost": status["job"]["steps_lost"] == 0,
    }
    return [text for text, holds in statements.items() if not holds]


Incidents = Counter[tuple[str, str]]


def _incidents(cluster: Cluster) -> tuple[Incidents, Incidents]:
    """Those that dtdctl reports and those in the journal, once both have the last ones."""
    reported, written = Incidents(), Incidents()

    def agree() -> bool:
        nonlocal reported, written
        reported = Counter((event["kind"], str(event["message"])) for event in cluster.events())
        written = Counter(
            (line.event, str(line.fields.get("message")))
            for line in journal(cluster.coordinator, COORDINATOR)
            if line.event in INCIDENTS
        )
        return reported == written

    with contextlib.suppress(DtdError):
        cluster.until(agree, "dtdctl events and the journal differ")
    return reported, written


def _audit(cluster: Cluster, job: dict[str, Any]) -> list[str]:
    """The contradictions between all records of the run: the job, journals and events."""
    result = job["result"] or {}
    losses: dict[int, set[float]] = {}
    for host in cluster.hosts:
        for entry in journal(host, WORKER):
            if entry.event == "step_committed":
                step, loss = int(entry.fields["step"]), float(entry.fields["loss"])
                losses.setdefault(step, set()).add(loss)
    reported, written = _incidents(cluster)
    statements = {
        f"job {job['id']} is {job['state']}: {job['reason']}": job["state"] == "done",
        "some steps were committed by no worker": set(losses) >= {*range(1, STEPS + 1)},
        "workers differ about a loss": all(len(found) == 1 for found in losses.values()),
        f"the replicas differ: {result}": len({*result.get("replica_digests", {}).values()}) == 1,
        f"rows are missing or repeated: {result}": (
            result.get("rows_missing") == result.get("rows_repeated") == 0
        ),
        f"only dtdctl events has {reported - written}": not reported - written,
        f"only the journal has {written - reported}": not written - reported,
    }
    return [text for text, holds in statements.items() if not holds]
