"""Attack a coordinator while a job runs on it, and measure the effect on job and operator.

    scripts/under_attack                 # measure, print the table
    scripts/under_attack --write         # and put it into docs/evaluation.md

Real daemons: a coordinator that all addresses of this machine can call, two workers with
credentials that train a model whose computing is sleeping, so that two cores are enough.  Then, all
at once: 2,000 half-open connections, a member that floods, a viewer that reads nothing
(`scripts.underattack.attackers`).  Calm and attacked blocks take turns; attackers have the lowest
priority for the processor, since what is asked is not how they share it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dtd.ctl.status import EXIT_DEGRADED, EXIT_HEALTHY
from dtd.errors import DtdError
from dtd.job import parse_job, to_mapping
from dtd.wire import messages as m
from scripts import markdown
from scripts.cluster.cluster import Cluster, with_log
from scripts.cluster.networks import COORDINATOR
from scripts.cluster.processes import Child, stop_all

# --- measurements, with the aims beside them ------------------------------------------------------


SLOWER_AT_MOST: Final = 0.05
STATUS_WITHIN_S: Final = 1.0
COMMAND_WITHIN_S: Final = 0.150
GROWTH_BYTES: Final = 64 * 1024 * 1024
REVOKED_WITHIN_S: Final = 1.0
_MIB: Final = 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Measured:
    """One kind of time, calm or under attack, all its blocks together.

    Attributes:
        steps_per_s: of the job, in each block.
        status_s: of each connection that an operator opened for one question.
        revoked_s: of each credential that was taken back.
        commands_s: wall time of `dtdctl status`.
        resident_bytes: the most memory that the coordinator was seen to hold, in each block.
    """

    steps_per_s: list[float] = field(default_factory=list)
    status_s: list[float] = field(default_factory=list)
    revoked_s: list[float] = field(default_factory=list)
    commands_s: list[float] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table."""

    what: str
    aim: str
    calm: str
    attacked: str
    holds: bool


def lines(calm: Measured, attacked: Measured) -> list[Line]:
    """Return the measurements, and whether they meet their aims."""
    ratios = [
        under / before for before, under in zip(calm.steps_per_s, attacked.steps_per_s, strict=True)
    ]
    ratio = statistics.median(ratios)
    command_s = statistics.median(calm.commands_s)
    before, most = calm.resident_bytes[0], max(attacked.resident_bytes)
    return [
        Line(
            what="steps of the job a second",
            aim=f"ratio at least {1 - SLOWER_AT_MOST:.2f}",
            calm=f"{statistics.median(calm.steps_per_s):.2f}",
            attacked=f"{statistics.median(attacked.steps_per_s):.2f}, ratio {ratio:.3f}"
            f" ({min(ratios):.3f} to {max(ratios):.3f})",
            holds=ratio >= 1 - SLOWER_AT_MOST,
        ),
        Line(
            what="an operator connects, asks for the status and has it",
            aim=f"under {STATUS_WITHIN_S:g} s",
            calm=_times(calm.status_s),
            attacked=_times(attacked.status_s),
            holds=max(attacked.status_s) < STATUS_WITHIN_S,
        ),
        Line(
            what="`dtdctl status`, the whole command",
            aim=f"calm under {COMMAND_WITHIN_S * 1000:.0f} ms",
            calm=_times(calm.commands_s),
            attacked=_times(attacked.commands_s),
            holds=command_s < COMMAND_WITHIN_S,
        ),
        Line(
            what="a credential is revoked",
            aim=f"under {REVOKED_WITHIN_S:g} s",
            calm=_times(calm.revoked_s),
            attacked=_times(attacked.revoked_s),
            holds=max(attacked.revoked_s) < REVOKED_WITHIN_S,
        ),
        Line(
            what="memory of the coordinator",
            aim=f"grows by less than {GROWTH_BYTES // _MIB} MiB",
            calm=f"{before / _MIB:.0f} MiB before the first attack",
            attacked=f"{most / _MIB:.0f} MiB, {(most - before) / _MIB:+.0f} MiB",
            holds=most - before < GROWTH_BYTES,
        ),
    ]


def table(told: list[Line]) -> str:
    """Markdown."""
    return markdown.table(
        ["what", "aim", "calm", "under attack", ""],
        (
            [one.what, one.aim, one.calm, one.attacked, "met" if one.holds else "**missed**"]
            for one in told
        ),
    )


def _times(seconds: list[float]) -> str:
    median, most = statistics.median(seconds) * 1000, max(seconds) * 1000
    return f"median {median:.0f} ms, slowest {most:.0f} ms"


# --- the trial ------------------------------------------------------------------------------------


PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "evaluation.md"
MARK: Final = "under attack"
WRITTEN_BY: Final = "scripts/under_attack"
WORKERS: Final = ("worker-0", "worker-1")
MEMBER: Final = "flooding"
VIEWER: Final = "idle"
START_S: Final = 120.0
ATTACK_BUILDS_UP_S: Final = 6.0
CALMS_DOWN_S: Final = 6.0
LOOK_EVERY_S: Final = 0.25

JOB: Final = """
[job]
name = "attacked"
task = "synthetic"
steps = 1000000
global_batch_size = 32
[task]
parameters = 20000
rows = 4096
compute_ms = 40.0
[checkpoint]
every_steps = 1000000
[elastic]
min_workers = 2
settle_s = 0.0
"""


class Trial:
    """One coordinator with a job and its attackers.

    Args:
        directory: for all that is written; exists.
        blocks: how many credentials there are to revoke, calm and attacked.
    """

    def __init__(self, directory: Path, blocks: int) -> None:
        self._cluster = Cluster(directory, environment={"HOME": str(directory)})
        self._spare = [f"spare-{number}" for number in range(2 * blocks)]
        self._cluster.enrol(
            [("worker", name) for name in (*WORKERS, MEMBER)]
            + [("viewer", name) for name in (VIEWER, *self._spare)]
        )
        self._attackers: list[Child] = []

    def start(self) -> None:
        """Start everything that is no attacker, and wait until the job trains.

        Raises:
            DtdError: it does not come to that.
        """
        cluster = self._cluster
        cluster.start_coordinator()
        for name in WORKERS:
            cluster.start_worker(name)
        cluster.ask(m.SubmitJob(spec=to_mapping(parse_job(JOB, source="scripts/under_attack"))))
        cluster.until(lambda: self._job()["step"] > 0, "does not train", timeout_s=START_S)

    def stop(self) -> None:
        """Stop everything; nothing is left when this returns."""
        stop_all(self._attackers, grace_s=0.0)
        self._cluster.stop(grace_s=1.0)

    def attack(self) -> None:
        """Have all attackers attack."""
        cluster = self._cluster
        at, path = str(cluster.address), cluster.credential_path
        for words in (
            ["half-open", at],
            ["member", at, str(path(MEMBER)), MEMBER],
            ["viewer", at, str(path(VIEWER))],
        ):
            command = ["/usr/bin/nice", "-n", "19", sys.executable]
            command += ["-m", "scripts.underattack.attackers", *words]
            self._attackers.append(Child(words[0], command, cluster.log_path(words[0])))
            self._attackers[-1].start()
        self._pause(ATTACK_BUILDS_UP_S)

    def relent(self) -> None:
        """End the attack."""
        for one in self._attackers:
            if one.exit_code() is not None:
                raise with_log(one, f"{one.name} has ended")
        stop_all(self._attackers, grace_s=0.0)
        self._attackers.clear()
        self._pause(CALMS_DOWN_S)

    def measure(self, seconds: float, into: Measured) -> None:
        """One block."""
        cluster = self._cluster
        begun_s, begun_step = time.monotonic(), self._job()["step"]
        commands = 3
        into.resident_bytes.append(0)
        while (lasted_s := time.monotonic() - begun_s) < seconds:
            if lasted_s > (len(into.commands_s) % commands) * seconds / commands:
                into.commands_s.append(self._command())
            asked_s = time.monotonic()
            status = cluster.ask(m.GetStatus())
            into.status_s.append(time.monotonic() - asked_s)
            resident_bytes = cluster.resident_bytes()
            into.resident_bytes[-1] = max(into.resident_bytes[-1], resident_bytes)
            self._pause(LOOK_EVERY_S)
        asked_s = time.monotonic()
        cluster.ask(m.RevokeCredential(name=self._spare.pop()))
        into.revoked_s.append(time.monotonic() - asked_s)
        job = status["job"]
        into.steps_per_s.append((job["step"] - begun_step) / (asked_s - begun_s))

    def _job(self) -> dict[str, Any]:
        return dict(self._cluster.ask(m.GetStatus())["job"])

    def _pause(self, seconds: float) -> None:
        coordinator = self._cluster.children[COORDINATOR]
        if coordinator.wait(seconds) is not None:
            raise with_log(coordinator, "the coordinator has ended")

    def _command(self) -> float:
        begun_s = time.monotonic()
        done = self._cluster.dtdctl("status")
        if done.returncode not in (EXIT_HEALTHY, EXIT_DEGRADED):
            raise DtdError(f"dtdctl status failed: {done.stderr.strip()}")
        return time.monotonic() - begun_s


def main() -> int:
    """Run the command; 1 if an aim is missed."""
    parser = argparse.ArgumentParser(prog=WRITTEN_BY, description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=3, help="calm ones, and as many attacked")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each of them lasts")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    options = parser.parse_args()
    calm, attacked = Measured(), Measured()
    with tempfile.TemporaryDirectory(prefix="dtd-under-attack-") as name:
        trial = Trial(Path(name), options.blocks)
        try:
            trial.start()
            for _ in range(options.blocks):
                trial.measure(options.seconds, calm)
                trial.attack()
                trial.measure(options.seconds, attacked)
                trial.relent()
        finally:
            trial.stop()
    told = lines(calm, attacked)
    print(table(told))
    if options.write:
        markdown.put_into(PAGE, MARK, WRITTEN_BY, table(told))
    return int(not all(one.holds for one in told))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DtdError as error:
        sys.exit(str(error))
