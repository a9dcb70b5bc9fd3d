"""What can befall a simulated cluster, as verbs with names.

A plan is a list of faults, each with its moment: a time, or a worker that reaches a phase
(`tests.sim.phases`).  The verbs are those of stories (`tests.sim.story`) and of random plans
(`tests.sim.plans`).  Whom a fault touches is told to the oracle: everybody else must not suffer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from dtd.core.membership.events import (
    CancelRequested,
    DrainRequested,
    Event,
    KillRequested,
    ResumeRequested,
)
from tests.sim.network import Network
from tests.sim.oracle import Oracle
from tests.sim.phases import Ambushes
from tests.sim.replica import Disk
from tests.sim.store import SimulatedStore
from tests.sim.worker import WorkerProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that befalls the cluster."""

    verb: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.verb, *self.names))


class Target(Protocol):
    """What faults act on: the machines of the cluster."""

    network: Network
    oracle: Oracle
    store: SimulatedStore
    ambushes: Ambushes

    def start(self, name: str) -> None:
        """Start a process; nothing when it runs."""
        ...

    def stop(self, name: str) -> None:
        """Kill a process at once; nothing when it does not run."""
        ...

    def process(self, name: str) -> WorkerProcess | None:
        """A worker's process, if it runs."""
        ...

    def disk(self, name: str) -> Disk:
        """A worker's disk."""
        ...

    def back_up(self) -> None:
        """Copy the coordinator's store."""
        ...

    def go_back(self) -> None:
        """Kill the coordinator and put the copy in the place of its store."""
        ...

    def waits_in_vain(self, job: str) -> bool:
        """Whether the job waits, and nobody is left who is not here."""
        ...

    def ask(self, event: Event) -> None:
        """Hand an operator's request to the coordinator, if it can be reached."""
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
    """Let a training thread wait in the kernel for a file server that does not answer."""
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
        target.oracle.flipped()
        process.trainer.session.corrupt()


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
    """Small packets pass between them and large ones do not, as with a wrong MTU."""
    target.network.narrow(one, other)
    target.network.narrow(other, one)


def _widen(target: Target, one: str, other: str) -> None:
    target.network.widen(one, other)
    target.network.widen(other, one)


def _lose(target: Target, one: str, other: str) -> None:
    """Many packets between them are lost, and sent again."""
    target.network.lose(one, other)
    target.network.lose(other, one)


def _keep(target: Target, one: str, other: str) -> None:
    target.network.keep(one, other)
    target.network.keep(other, one)


def _echo(target: Target, name: str) -> None:
    """What an earlier coordinator has said comes again, as from a copy of it that was forgotten."""
    process = target.process(name)
    if process is not None:
        process.hear_again()


def _look_after(target: Target, job: str) -> None:
    """The operator resumes a job that waits for somebody who will not come back."""
    if target.waits_in_vain(job):
        target.ask(ResumeRequested(job=job))


def _reset(target: Target, one: str, other: str) -> None:
    target.network.reset(one, other)


def _sever(target: Target, one: str, other: str) -> None:
    """Reset their lifelines, as a middlebox does to a connection on which nothing is said."""
    target.network.reset(one, other, lifelines_only=True)


def _flip(target: Target, source: str, to: str) -> None:
    target.network.flip(source, to)


def _back_up(target: Target) -> None:
    target.back_up()


def _restore(target: Target, _coordinator: str) -> None:
    """Like `dtd-coordinator restore`; the coordinator is started by another fault."""
    target.go_back()


def _fail_store(target: Target, _coordinator: str) -> None:
    """The disk of the coordinator's store is full, or fails."""
    target.store.fill()


def _mend_store(target: Target, _coordinator: str) -> None:
    target.store.mend()


def _cancel(target: Target, job: str) -> None:
    target.oracle.cancelled()
    target.ask(CancelRequested(job=job))


def _resume(target: Target, job: str) -> None:
    target.ask(ResumeRequested(job=job))


def _drain(target: Target, name: str) -> None:
    target.ask(DrainRequested(name=name))


def _kill(target: Target, name: str, signal: str) -> None:
    target.ask(KillRequested(name=name, signal=signal))


def _lie(target: Target, name: str) -> None:
    """From now on it tells the coordinator what is not so."""
    target.oracle.liars.add(name)


def _calm(target: Target) -> None:
    target.ambushes.lift()
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
    "lie": _lie,
    "calm": _calm,
}
HARMLESS: Final = frozenset(
    {
        *("restart", "unpause", "unstick", "clear", "release", "widen", "keep", "calm"),
        *("cancel", "look_after", "echo"),
    }
)
"""Whoever these touch suffers nothing by them."""


def apply(fault: Fault, target: Target) -> None:
    """Let it happen now."""
    if fault.verb not in HARMLESS:
        target.oracle.struck(fault.names)
    VERBS[fault.verb](target, *fault.names)
