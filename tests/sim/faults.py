"""The faults of a simulated cluster, each a verb with the names of the processes concerned.

A plan is a list of faults, each of which strikes at a given time or when a worker reaches a phase
(`tests.sim.phases`).  Stories (`tests.sim.story`) and random plans (`tests.sim.plans`) use these
verbs.  The oracle is told which processes a fault affects; all others must not suffer from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from dtd.cluster.events import (
    CancelRequested,
    DrainRequested,
    Event,
    KillRequested,
    ResumeRequested,
)
from tests.sim.network import Network
from tests.sim.oracle import Oracle
from tests.sim.phases import Triggers
from tests.sim.replica import Disk
from tests.sim.store import SimulatedStore
from tests.sim.worker import WorkerProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault: a verb and the names of the processes that it affects."""

    verb: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.verb, *self.names))


class Target(Protocol):
    """The machines of the cluster, on which faults act."""

    network: Network
    oracle: Oracle
    store: SimulatedStore
    triggers: Triggers

    def start(self, name: str) -> None:
        """Start a process; does nothing if it is running."""
        ...

    def stop(self, name: str) -> None:
        """Kill a process immediately; does nothing if it is not running."""
        ...

    def process(self, name: str) -> WorkerProcess | None:
        """A worker's process, if it is running."""
        ...

    def disk(self, name: str) -> Disk:
        """A worker's disk."""
        ...

    def back_up(self) -> None:
        """Take a backup of the coordinator's store."""
        ...

    def go_back(self) -> None:
        """Kill the coordinator and restore its store from the backup."""
        ...

    def waits_in_vain(self, job: str) -> bool:
        """Whether the job waits although every running worker is connected."""
        ...

    def trains_unseen(self) -> bool:
        """Whether a process of which the coordinator knows nothing may commit steps."""
        ...

    def ask(self, event: Event) -> None:
        """Pass an operator's request to the coordinator, if it is running."""
        ...


def _restart(target: Target, name: str) -> None:
    target.start(name)


def _crash(target: Target, name: str) -> None:
    target.stop(name)


def _pause(target: Target, name: str) -> None:
    process = target.process(name)
    if process is not None:
        process.pause()


def _unpause(target: Target, name: str) -> None:
    process = target.process(name)
    if process is not None:
        process.unpause()


def _stick(target: Target, name: str) -> None:
    process = target.process(name)
    if process is not None and process.trainer is not None:
        process.trainer.thread.stick()


def _unstick(target: Target, name: str) -> None:
    process = target.process(name)
    if process is not None and process.trainer is not None:
        process.trainer.thread.unstick()


def _block(target: Target, name: str) -> None:
    """Make a training thread wait in the kernel for a file server that does not respond."""
    process = target.process(name)
    if process is not None and process.trainer is not None:
        process.trainer.thread.stick("a disk or a file server")


def _loop(target: Target, name: str) -> None:
    process = target.process(name)
    if process is not None and process.trainer is not None:
        process.trainer.thread.loop()


def _corrupt(target: Target, name: str) -> None:
    process = target.process(name)
    if process is not None and process.trainer is not None:
        target.oracle.causes.flipped = True
        process.trainer.session.corrupt()


def _damage(target: Target, name: str) -> None:
    """Flip bits of one shard in a worker's memory."""
    process = target.process(name)
    if process is not None and process.trainer is not None:
        process.trainer.session.damage()


def _fill(target: Target, name: str) -> None:
    target.disk(name).full = True


def _clear(target: Target, name: str) -> None:
    target.disk(name).full = False


def _spoil(target: Target, name: str) -> None:
    process = target.process(name)
    if process is not None:
        process.disk.spoil()


def _leave(target: Target, name: str) -> None:
    process = target.process(name)
    if process is not None:
        process.leave()


def _hold(target: Target, one: str, other: str) -> None:
    target.network.stall(one, other)
    target.network.stall(other, one)


def _release(target: Target, one: str, other: str) -> None:
    target.network.release(one, other)
    target.network.release(other, one)


def _partition_oneway(target: Target, source: str, to: str) -> None:
    target.network.stall(source, to)


def _narrow(target: Target, one: str, other: str) -> None:
    """Lose large packets between two processes but deliver small ones, as with a wrong MTU."""
    target.network.narrow(one, other)
    target.network.narrow(other, one)


def _widen(target: Target, one: str, other: str) -> None:
    target.network.widen(one, other)
    target.network.widen(other, one)


def _lose(target: Target, one: str, other: str) -> None:
    """Lose many packets between two processes, which are then retransmitted."""
    target.network.lose(one, other)
    target.network.lose(other, one)


def _keep(target: Target, one: str, other: str) -> None:
    target.network.keep(one, other)
    target.network.keep(other, one)


def _echo(target: Target, name: str) -> None:
    """Deliver an old message of the coordinator again, as from a forgotten second coordinator."""
    process = target.process(name)
    if process is not None:
        process.hear_again()


def _look_after(target: Target, job: str) -> None:
    """Resume, as the operator, a job that waits for a worker that will not return."""
    if target.waits_in_vain(job):
        target.ask(ResumeRequested(job=job))


def _reset(target: Target, one: str, other: str) -> None:
    target.network.reset(one, other)


def _sever(target: Target, one: str, other: str) -> None:
    """Reset the lifelines between two processes, as a middlebox does with idle connections."""
    target.network.reset(one, other, lifelines_only=True)


def _flip(target: Target, source: str, to: str) -> None:
    target.network.flip(source, to)


def _back_up(target: Target) -> None:
    target.back_up()


def _restore(target: Target, _coordinator: str) -> None:
    """Restore the store as `dtd-coordinator restore` does; another fault starts the coordinator."""
    target.go_back()


def _fail_store(target: Target, _coordinator: str) -> None:
    """Make the disk of the coordinator's store fail, as if it were full."""
    target.store.fill()


def _mend_store(target: Target, _coordinator: str) -> None:
    target.store.mend()


def _cancel(target: Target, job: str) -> None:
    target.oracle.causes.cancels += 1
    target.ask(CancelRequested(job=job))


def _resume(target: Target, job: str) -> None:
    """As the operator, who may not declare gone what still trains."""
    if not target.trains_unseen():
        target.ask(ResumeRequested(job=job))


def _drain(target: Target, name: str) -> None:
    target.ask(DrainRequested(name=name))


def _kill(target: Target, name: str, signal: str) -> None:
    target.ask(KillRequested(name=name, signal=signal))


def _calm(target: Target) -> None:
    target.triggers.lift()
    target.network.heal()


VERBS: Final[dict[str, Callable[..., None]]] = {
    "restart": _restart,
    "crash": _crash,
    "pause": _pause,
    "unpause": _unpause,
    "stick": _stick,
    "unstick": _unstick,
    "block": _block,
    "loop": _loop,
    "corrupt": _corrupt,
    "damage": _damage,
    "spoil": _spoil,
    "fill": _fill,
    "clear": _clear,
    "leave": _leave,
    "hold": _hold,
    "release": _release,
    "partition_oneway": _partition_oneway,
    "narrow": _narrow,
    "widen": _widen,
    "reset": _reset,
    "lose": _lose,
    "keep": _keep,
    "echo": _echo,
    "look_after": _look_after,
    "sever": _sever,
    "flip": _flip,
    "backup": _back_up,
    "restore": _restore,
    "fail_store": _fail_store,
    "mend_store": _mend_store,
    "cancel": _cancel,
    "resume": _resume,
    "drain": _drain,
    "kill": _kill,
    "calm": _calm,
}
HARMLESS: Final = frozenset(
    {
        *("restart", "unpause", "unstick", "clear", "release", "widen", "keep", "calm"),
        *("cancel", "look_after", "echo"),
    }
)
"""Faults that cause no harm to the processes they affect."""


def apply(fault: Fault, target: Target) -> None:
    """Apply a fault now."""
    if fault.verb not in HARMLESS:
        target.oracle.causes.struck(fault.names)
    VERBS[fault.verb](target, *fault.names)
