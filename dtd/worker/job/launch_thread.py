"""The thread of a job whose script does not join: dtd starts it on each worker, as torchrun does.

    gather rank 0's address -> start the script -> every TICK_S gather who has ended -> the end

Rank 0 serves the key-value store through which the scripts' `init_process_group` finds its peers;
its port is one that the kernel has chosen.  The ring stays open beside the scripts, so that a lost
worker ends the generation at once.  Whenever a generation ends, its scripts are ended, and the next
generation starts others.  dtd knows no step and no state of such a job.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import structlog

from dtd.cluster.figures import told
from dtd.cluster.state import FRUITFUL_S
from dtd.errors import RingBroken, ScriptFailed, TaskError
from dtd.exchange.collective import RingCollective
from dtd.job import JobSpec
from dtd.packages.source import find_source, module_name
from dtd.text.shown import TRACE_CHARACTERS, cut
from dtd.train.record import Outcome, OutcomeKind
from dtd.wire import messages as m
from dtd.worker.environment.guarded_process import GuardedProcess
from dtd.worker.environment.packages import task_digest
from dtd.worker.job.job_thread import Facilities, JobThread
from dtd.worker.job.output import OutputPipe

log = structlog.get_logger()

TICK_S: Final = 0.2
"""How often ranks tell each other whether their scripts run."""
STORE_TIMEOUT_S: Final = 30.0
MOST_DEATHS: Final = 4
"""The job fails when a signal has ended so many of a worker's scripts in a row, each within
`FRUITFUL_S`."""

_TICK: Final = struct.Struct("!?id??")
_START: Final = struct.Struct("!I")


class Tick(NamedTuple):
    """A rank's script, and the requests to its worker.

    Attributes:
        code: its exit code; the negative number of the signal that has ended it.
        age_s: time since its end.
    """

    ended: bool
    code: int
    age_s: float
    stop: bool
    yield_: bool


class LaunchThread(JobThread):
    """The thread of a job whose script is started, not called."""

    def __init__(
        self,
        prepare: m.Prepare,
        spec: JobSpec,
        worker: Facilities,
        *,
        output: OutputPipe,
        **parts: Any,
    ) -> None:
        super().__init__(prepare, spec, worker, **parts)
        self._output = output
        self._script = Path()
        self._starts = 0
        self._deaths = 0

    # --- what a job holds: nothing -------------------------------------------------------------

    def _committed_step(self) -> int:
        return 0

    def _held(self) -> tuple[m.Held, ...]:
        job = self._prepare.job
        return (m.Held(job=job, generation=0, step=0, digest="", where="memory"),)

    def _prepared(self) -> tuple[int, int]:
        return 0, 0

    def _save(self, order: m.Save) -> None:
        raise AssertionError(f"{order} of a job without a state")

    def _result(self, outcome: Outcome) -> dict[str, Any]:
        del outcome
        return {}

    def _trace(self, error: BaseException) -> str:
        return error.output if isinstance(error, ScriptFailed) else super()._trace(error)

    # --- its generations -----------------------------------------------------------------------

    def _warm_up(self) -> None:
        from dtd.train.warm_up.fingerprints import environment

        prepare, device = self._prepare, self._config.device
        place = self._place_of_code()
        here = environment(device) | self._required()
        self._script = _found(module_name(self._spec.job.task), place)
        self._post(
            m.Warmed(
                job=prepare.job,
                dataset_rows=0,
                dataset_fingerprint="",
                plan_digest="",
                numerics_fingerprint=f"torch {here['torch']}, {device.partition(':')[0]}",
                parameters=0,
                steps_total=0,
                held=self._held(),
                task_digest=task_digest(self._spec.job.task, place),
                environment=told(here),
            )
        )

    def _generation(self, ring: RingCollective) -> Outcome:
        from dtd.exchange.group_backends import Rendezvous

        ring.wait_up()
        rendezvous = Rendezvous(
            rank=ring.rank,
            world_size=ring.world_size,
            host=ring.host(),
            timeout_s=STORE_TIMEOUT_S,
        )
        entries = _gather(ring, 0, _START.pack(self._starts) + rendezvous.place)
        ring.agreed()
        place = entries[0][_START.size :]
        store = rendezvous.store(place) if ring.rank == 0 else None
        starts = max(_START.unpack_from(entry)[0] for entry in entries)
        self._starts = starts + 1
        self._output.forget()
        script = GuardedProcess(
            [sys.executable, str(self._script), *map(str, self._spec.task.get("args", ()))],
            os.environ | self._variables(ring, place.decode(), starts),
        )
        log.info("script_started", rank=ring.rank, world_size=ring.world_size)
        try:
            kind = self._watch_over(script, ring)
        finally:
            script.end()
            del store  # it has served until now
        return Outcome(
            kind=kind, step=0, digest="", skipped=0, rows_missing=0, rows_repeated=0, metrics={}
        )

    def _variables(self, ring: RingCollective, place: str, starts: int) -> dict[str, str]:
        """The environment as torchrun sets it, for one process on this host."""
        host, _, port = place.rpartition(" ")
        rank, world_size = str(ring.rank), str(ring.world_size)
        return {
            "RANK": rank,
            "WORLD_SIZE": world_size,
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": rank,
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "TORCHELASTIC_RUN_ID": self._prepare.job,
            "TORCHELASTIC_RESTART_COUNT": str(starts),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": str(self._config.threads or self._spec.train.threads),
            "PYTHONUNBUFFERED": "1",  # `dtdctl logs` has each line at once
            "CUDA_VISIBLE_DEVICES": visible_devices(self._config.device, os.environ),
        }

    def _watch_over(self, script: GuardedProcess, ring: RingCollective) -> OutcomeKind:
        """Wait for the scripts of all ranks.

        Raises:
            RingBroken: a worker is lost, or the script of one was ended by a signal.
            ScriptFailed: the script of this rank was the first to fail.
        """
        number = 0
        while True:
            number += 1
            script.wait(TICK_S)
            self._reporter.progress()
            flags, age_s = self._reporter.flags(), time.monotonic() - script.ended_s
            own = Tick(script.code is not None, script.code or 0, age_s, flags.stop, flags.yield_)
            ticks = [
                Tick._make(_TICK.unpack(entry)) for entry in _gather(ring, number, _TICK.pack(*own))
            ]
            failed = [rank for rank, tick in enumerate(ticks) if tick.ended and tick.code]
            if failed:
                number += 1
                _gather(ring, number, b"")  # all workers live: it is not that one was lost
                first = max(failed, key=lambda rank: ticks[rank].age_s)
                self._end_with(first, ticks[first].code, script, ring)
            if all(tick.ended for tick in ticks):
                return "finished"
            if any(tick.stop for tick in ticks):
                return "stopped"
            if any(tick.yield_ for tick in ticks):
                return "yielded"

    def _end_with(
        self, rank: int, code: int, script: GuardedProcess, ring: RingCollective
    ) -> NoReturn:
        """Fail the job, or begin again: the script of this rank was the first to end badly."""
        how = f"has exited with code {code}"
        if code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        if rank == ring.rank and code < 0:
            lasting = script.ended_s - script.began_s >= FRUITFUL_S
            self._deaths = 1 if lasting else self._deaths + 1
            how += f", {self._deaths} times in a row" * (self._deaths >= MOST_DEATHS)
        if rank == ring.rank and (code > 0 or self._deaths >= MOST_DEATHS):
            raise self._failure(how, ring)
        raise RingBroken(f"{self._script.name} {how} on {ring.assign.roster[rank].name}")

    def _failure(self, how: str, ring: RingCollective) -> ScriptFailed:
        tail = self._output.tail()
        last = next((line.strip() for line in reversed(tail) if line.strip()), "it printed nothing")
        place = f"rank {ring.rank} of {ring.world_size}, host {socket.gethostname()}"
        return ScriptFailed(
            f"{self._script.name} {how} ({place}): {last}",
            output=cut("\n".join(tail)[-TRACE_CHARACTERS:], TRACE_CHARACTERS),
        )


def _gather(ring: RingCollective, number: int, entry: bytes) -> list[bytes]:
    ring.open_step(number, [])
    entries = ring.gather(entry)
    ring.close_step()
    return entries


def _found(module: str, place: Path | None) -> Path:
    """The script's file: shipped, or one that is installed here."""
    source = find_source(module, sys.path if place is None else [place])
    if source is None or source.path is None:
        raise TaskError(f"{module}.py is not here", remedy="submit it with `dtdctl run`")
    return source.path


def visible_devices(device: str, environment: Mapping[str, str]) -> str:
    """CUDA_VISIBLE_DEVICES for a process that is to see this worker's device alone."""
    number = device.partition(":")[2]
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    return visible.split(",")[int(number)].strip() if number and visible else number
