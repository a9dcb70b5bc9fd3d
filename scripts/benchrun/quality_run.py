"""One run of `scripts/bench quality`: its ranks in this process, and the tasks they train."""

from __future__ import annotations

import functools
import sys
import tempfile
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dtd.engine.control_word import Flags
from dtd.engine.step_protocol import StateKey
from dtd.exchange.in_process import InProcessRing
from dtd.job import from_mapping
from dtd.tasks.chargpt import CharGpt
from dtd.tasks.cifar10 import Cifar10
from dtd.train.record import CheckpointRecord, EvalRecord, MemoryRecord, Outcome, StepRecord
from dtd.train.run import JobSessionRunner
from scripts.benchrun.quality import KIND, thinned
from scripts.benchrun.results import Record

RANKS: Final = 4
_CHUNK_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 600.0

# --- tasks: their data is read once for all ranks and runs ---------------------------------------


class Images(Cifar10):
    """`Cifar10` with datasets that are read once."""

    train_dataset = functools.cache(Cifar10.train_dataset)
    eval_dataset = functools.cache(Cifar10.eval_dataset)


@functools.cache
def resnet(**arguments: Any) -> Images:
    """One for all ranks."""
    return Images(**arguments)


@functools.cache
def chargpt(**arguments: Any) -> CharGpt:
    """One for all ranks."""
    return CharGpt(**arguments)


# --- ranks in one process ------------------------------------------------------------------------


@dataclass
class _Listener:
    """Reporter and requests of one rank: keeps its steps, asks for nothing."""

    steps: list[StepRecord] = field(default_factory=list)

    def progress(self) -> None:
        """Nobody watches."""

    def begins(self, kind: str, shape: Hashable = None) -> None:
        """Nobody watches."""

    def step_committed(self, record: StepRecord) -> None:
        """Keep it."""
        self.steps.append(record)

    def evaluated(self, record: EvalRecord) -> None:
        """The outcome has it."""

    def agreed(self, key: StateKey, digest: bytes) -> None:
        """Nothing is saved."""

    def checkpoint_saved(self, record: CheckpointRecord) -> None:
        """Nothing is."""

    def memory_measured(self, record: MemoryRecord) -> None:
        """Not of interest."""

    def warning(self, event: str, message: str) -> None:
        """Tell it."""
        print(f"{event}: {message}", file=sys.stderr)

    def flags(self) -> Flags:
        """Nothing is asked."""
        return Flags()


def one_run(tables: Mapping[str, Any], ranks: int = RANKS) -> Record:
    """Train a job to its end in this process; returns curve, metrics, bytes and seconds."""
    spec = from_mapping(tables, source=KIND)
    listeners = [_Listener() for _ in range(ranks)]
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dtd-quality-") as directory:
        runs = [
            JobSessionRunner(
                spec=spec,
                job_id=KIND,
                init_from=None,
                device="cpu",
                state_dir=Path(directory),
                reporter=listener,
                requests=listener,
            )
            for listener in listeners
        ]
        try:
            for one in runs:
                one.prepare()
            outcomes = _train(runs)
        finally:
            for one in runs:
                one.close()
    steps = listeners[0].steps
    tail = [step.loss for step in steps[-max(1, len(steps) // 10) :]]
    total = outcomes[0].step
    return {
        "steps": total,
        "curve": thinned([[step.step, 0.0, step.loss] for step in steps]),
        "metrics": {"train_loss": sum(tail) / len(tail), **outcomes[0].metrics},
        "step_bytes": sum(_late_bytes(one.steps, total) for one in listeners) / ranks,
        "seconds": time.monotonic() - begun_s,
    }


def _late_bytes(steps: Sequence[StepRecord], total: int) -> float:
    """Bytes a step in the second half of a run, when warm-ups are over."""
    late = [step for step in steps if step.step > total // 2]
    begun = max((step.step for step in steps if step.step <= total // 2), default=0)
    return sum(step.sent_bytes for step in late) / (total - begun)


def _train(runs: Sequence[JobSessionRunner]) -> list[Outcome]:
    """One generation, a thread a rank; raises the first rank's error."""
    ring = InProcessRing(len(runs), chunk_bytes=_CHUNK_BYTES, timeout_s=_TIMEOUT_S)
    outcomes: dict[int, Outcome] = {}
    failures: list[BaseException] = []

    def serve(rank: int) -> None:
        try:
            outcomes[rank] = runs[rank].run(ring.collective(rank), 1, writers=frozenset())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failures.append(error)
            ring.break_ring(f"rank {rank} raised {error!r}")

    threads = [threading.Thread(target=serve, args=(rank,)) for rank in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    if len({outcome.digest for outcome in outcomes.values()}) != 1:
        raise AssertionError("replicas differ")
    return [outcomes[rank] for rank in range(len(runs))]
