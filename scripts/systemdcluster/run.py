"""One run: install, submit, hurt, finish, and audit what the journals tell of the steps."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dtd.event_names import INCIDENTS
from scripts.systemdcluster.cluster import COORDINATOR, WORKER, Cluster
from scripts.systemdcluster.drill import inflict
from scripts.systemdcluster.faults import Fault
from scripts.systemdcluster.report import Result
from scripts.systemdcluster.witnesses import Unit, journal, show

STEPS: Final = 2000
PAUSE_MS: Final = 200.0
_FINISH_S: Final = 120.0


def run(cluster: Cluster, faults: Sequence[Fault], *, say: Callable[[str], None]) -> Result:
    """Do all of it.

    Raises:
        DtdError: something cannot be done, or does not come to its end in time.
    """
    cluster.install()
    say(f"job {cluster.submit(steps=STEPS, pause_ms=PAUSE_MS)} trains on all hosts")
    outcomes = []
    for fault in faults:
        host = cluster.coordinator if fault.unit == COORDINATOR else cluster.operator
        say(f"{fault.words}, {host.name}")
        outcomes.append(inflict(cluster, fault, host))
    say("the last steps")
    before = [show(host, WORKER) for host in cluster.hosts]
    job = cluster.finish(timeout_s=_FINISH_S)
    cluster.until(
        lambda: [show(host, WORKER) for host in cluster.hosts] == [_idle(one) for one in before],
        "the workers do not wait for the next job as the processes that they were",
    )
    return Result(outcomes=outcomes, job=job, gaps=audit(cluster, job))


def _idle(unit: Unit) -> Unit:
    """After a job: the same process as before, which has begun afresh."""
    return dataclasses.replace(unit, status="waits for a job")


def audit(cluster: Cluster, job: Mapping[str, Any]) -> list[str]:
    """What does not fit together of all that was written down, in words."""
    result = job["result"]
    digests = set(result.get("replica_digests", {}).values())
    return [
        *_steps(cluster),
        *_incidents(cluster),
        *([] if len(digests) == 1 else [f"the replicas have {len(digests)} digests"]),
        *(f"{key}: {result[key]}" for key in ("rows_missing", "rows_repeated") if result[key]),
    ]


def _steps(cluster: Cluster) -> list[str]:
    """Whether every step was committed, and with the same loss by all who committed it."""
    losses: dict[int, set[float]] = {}
    for host in cluster.hosts:
        for entry in journal(host, WORKER):
            if entry.event == "step_committed":
                step, loss = int(entry.fields["step"]), float(entry.fields["loss"])
                losses.setdefault(step, set()).add(loss)
    missing = [step for step in range(1, STEPS + 1) if step not in losses]
    differing = [step for step, found in losses.items() if len(found) > 1]
    return [
        *([f"no worker has committed {len(missing)} steps, first {missing[0]}"] if missing else []),
        *([f"workers differ about the loss of {differing[:5]}"] if differing else []),
    ]


def _incidents(cluster: Cluster) -> list[str]:
    """Whether `dtdctl events` and the coordinator's journal tell the same, each thing as often."""
    told = Counter((event["kind"], str(event["message"])) for event in cluster.events())
    lines = journal(cluster.coordinator, COORDINATOR)
    written = Counter(
        (line.event, str(line.fields.get("message"))) for line in lines if line.event in INCIDENTS
    )
    return [
        *(f"only dtdctl events tells: {kind}: {text}" for kind, text in told - written),
        *(f"only the journal tells: {kind}: {text}" for kind, text in written - told),
    ]
