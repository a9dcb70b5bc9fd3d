"""The first words between a worker and its coordinator: who comes, and whether it may work here.

Part of the membership machine; changes the books, adds effects.  What becomes of a worker that may
is the business of `dtd.core.admission`.
"""

from __future__ import annotations

from dtd.core import versions
from dtd.core.books import ClusterState
from dtd.core.records import Registration, Worker
from dtd.core.transitions import WorkerEvent
from dtd.wire import messages as m


def newcomer(message: m.Register, known: Worker | None = None) -> Worker:
    """A worker as it introduces itself.

    Args:
        message: what it says; what that claims of a generation was found true.
        known: what is known of this name.
    """
    worker = Worker(
        registration=Registration(
            name=message.name,
            incarnation=message.incarnation,
            pid=message.pid,
            host=message.host,
            device=message.device,
            data_host=message.data_host,
            data_port=message.data_port,
            version=message.version,
            instance=message.instance,
        )
    )
    part = worker.participation
    if known is not None and known.incarnation == message.incarnation:
        part.jobs, part.ranks = known.participation.jobs, known.participation.ranks
    if message.generation:
        names = [member.name for member in message.roster]
        part.given(message.job)
        part.assigned(message.generation, names.index(worker.name) if worker.name in names else 0)
    return worker


def greet(books: ClusterState, worker: Worker) -> None:
    """Tell a worker that it is known."""
    books.send(worker.name, _registered(books))
    note = versions.note(worker.registration.version, books.identity.version)
    books.incident("worker_registered", f"{worker.name} registered{note}", worker=worker.name)


def tell_last_end(books: ClusterState, message: m.Register, known: Worker | None) -> None:
    """The process before this one did not end in good order, and its successor knows how.

    A signal that an operator has sent needs no word.
    """
    same = known is not None and (
        known.liveness.signalled or known.incarnation == message.incarnation
    )
    if not message.last_end or same:
        return
    if message.name in books.setbacks.crashed_workers:
        books.setbacks.last_ends[message.name] = message.last_end
    books.incident(
        "worker_crashed", f"{message.name}'s last process {message.last_end}", worker=message.name
    )


def _registered(books: ClusterState, *, refused: str = "") -> m.Registered:
    return m.Registered(
        heartbeat_interval_s=books.heartbeat_interval_s,
        heartbeat_timeout_s=books.heartbeat_timeout_s,
        store_id=books.identity.store_id,
        epoch=books.identity.epoch,
        refused=refused,
    )


def is_foreign(books: ClusterState, worker: Worker) -> bool:
    """Whether its dtd must not work with this one: it stays connected, and gets no work.

    One that takes part in a generation may finish its job; its next process is asked again.
    """
    why = versions.refusal(worker, version=books.identity.version, host=books.identity.host)
    if why:
        books.move_worker(worker, WorkerEvent.INCOMPATIBLE)
        worker.foreign, worker.reason = True, why
        books.send(worker.name, _registered(books, refused=why))
        books.incident("worker_refused", f"{worker.name} is refused: {why}", worker=worker.name)
    return bool(why)
