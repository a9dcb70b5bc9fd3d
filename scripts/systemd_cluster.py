"""Install dtd on hosts with a systemd each, train, and inject faults into daemons and hosts.

    python -m scripts.systemd_cluster --hosts 3
    python -m scripts.systemd_cluster --faults kill,reboot --json

The hosts are made by systemd-nspawn from this machine's own files, kept in memory, joined by an
Ethernet of 1 Gbit/s, and gone afterwards.  It needs root.

Exit codes: 0 all is as it must be, 1 something is not or could not be done, 2 usage.  The table
goes to stdout, what happens meanwhile to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dtd import figures
from dtd.ctl import output
from dtd.errors import DtdError, UsageError
from dtd.event_names import INCIDENTS
from scripts.cluster.processes import exit_on_stop_signals, ignore_stop_signals
from scripts.systemdcluster.cluster import COORDINATOR, WORKER, Cluster
from scripts.systemdcluster.faults import FAULTS, Fault, Outcome, inflict
from scripts.systemdcluster.host import Unit, journal, show, why_not

# --- the result -----------------------------------------------------------------------------------


_HEADINGS = ("FAULT", "HOST", "DETECTED", "RECOVERED", "WHOLE", "REDONE", "LOST", "AGREE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All faults, and how the job ended.

    Attributes:
        outcomes: a fault each.
        job: the job as `dtdctl jobs` has it.
        gaps: contradictions between all records, in words.
    """

    outcomes: Sequence[Outcome]
    job: dict[str, Any]
    gaps: Sequence[str]

    @property
    def problems(self) -> list[str]:
        """All that is not as it must be."""
        found = [f"{o.fault}: {text}" for o in self.outcomes for text in o.disagreements]
        found += self.gaps
        if self.job["state"] != "done":
            found.append(f"job {self.job['id']} is {self.job['state']}: {self.job['reason']}")
        lost = sum(outcome.steps_lost for outcome in self.outcomes)
        if lost:
            found.append(f"{lost} steps are lost")
        return found


def lines(result: Result) -> list[str]:
    """A line a fault; then the job, then the failures."""
    rows = [
        (
            outcome.fault,
            outcome.host,
            figures.span(outcome.detected_after_s),
            figures.span(outcome.recovered_after_s),
            figures.span(outcome.whole_after_s),
            str(outcome.steps_redone),
            str(outcome.steps_lost),
            "no" if outcome.disagreements else "yes",
        )
        for outcome in result.outcomes
    ]
    job = result.job
    return [
        *output.table_lines(_HEADINGS, rows),
        "",
        f"job {job['id']} is {job['state']} after {job['step']} of {job['total_steps']} steps",
        *(f"not as it must be: {problem}" for problem in result.problems),
    ]


def as_object(result: Result) -> dict[str, Any]:
    """The same for programs."""
    job = result.job
    return {
        "faults": [dataclasses.asdict(outcome) for outcome in result.outcomes],
        "job": {key: job[key] for key in ("id", "state", "step", "total_steps")},
        "problems": result.problems,
    }


# --- one run: install, submit, inject, finish, audit ----------------------------------------------


STEPS: Final = 2000
PAUSE_MS: Final = 200.0
_FINISH_S: Final = 300.0


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
    """Describe the contradictions between all records of the run."""
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


# --- the command ----------------------------------------------------------------------------------


FEWEST_HOSTS: Final = 2
MOST_HOSTS: Final = 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Hurt a cluster and return the exit code."""
    options = _parser().parse_args(arguments)
    exit_on_stop_signals()
    begun_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun_s:7.1f} s  {text}", file=sys.stderr, flush=True)

    try:
        faults = _faults(options.faults)
        reason = why_not()
        if reason:
            raise DtdError(f"no host can be booted here: {reason}")
        with (
            tempfile.TemporaryDirectory(prefix="dtd-systemd-") as name,
            contextlib.closing(Cluster(options.hosts, directory=Path(name), say=say)) as cluster,
        ):
            result = run(cluster, faults, say=say)
            ignore_stop_signals()
    except DtdError as error:
        output.say_error(error, as_json=options.json)
        return error.exit_code
    print(json.dumps(as_object(result)) if options.json else "\n".join(lines(result)))
    return 1 if result.problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/systemd-cluster",
        description="Install dtd on hosts with a systemd of their own, and hurt them.",
    )
    parser.add_argument("--hosts", type=_hosts, default=FEWEST_HOSTS, metavar="N")
    parser.add_argument(
        "--faults", default="all", metavar="A,B,...", help=f"of {', '.join(FAULTS)}"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def _hosts(text: str) -> int:
    number = int(text)
    if not FEWEST_HOSTS <= number <= MOST_HOSTS:
        raise argparse.ArgumentTypeError(f"must be {FEWEST_HOSTS} to {MOST_HOSTS}")
    return number


def _faults(text: str) -> list[Fault]:
    names = list(FAULTS) if text == "all" else text.split(",")
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        known = ", ".join(FAULTS)
        raise UsageError(f"--faults: there is no fault {unknown[0]!r}", remedy=f"choose of {known}")
    return [FAULTS[name] for name in names]


if __name__ == "__main__":
    sys.exit(main())
