"""The first words between a worker and its coordinator: who comes, and whether it may work here.

Releases of dtd may work together that are equal up to the patch level: a patch can so be rolled out
host by host.  It changes neither messages nor numbers; a minor release may change either.

A name belongs to one living worker: whoever comes later under it is refused.  A process that comes
from the same state directory (an equal instance) is no other worker: it holds the lock of that
directory, so the one before it is dead, however its connection may linger.  One from elsewhere may
take the name once nobody answers under it any more.

Part of the membership machine; changes the books, adds effects.  What becomes of a worker that may
is the business of `membership.admission`.
"""

from __future__ import annotations

from dtd import troubles
from dtd.core.membership.records import Registration, Worker
from dtd.core.membership.state import ClusterState
from dtd.core.membership.transitions import GONE, MEMBERS, WorkerEvent
from dtd.wire import messages as m

_RELEASE_PARTS = 2


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
    note = _version_note(worker.registration.version, books.identity.version)
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
    why = _version_refusal(worker, version=books.identity.version, host=books.identity.host)
    if why:
        books.move_worker(worker, WorkerEvent.INCOMPATIBLE)
        worker.foreign, worker.reason = True, why
        books.send(worker.name, _registered(books, refused=why))
        books.incident("worker_refused", f"{worker.name} is refused: {why}", worker=worker.name)
    return bool(why)


def _version_refusal(worker: Worker, *, version: str, host: str) -> str:
    """Why a worker's dtd must not work with this coordinator's; empty when it may.

    Args:
        worker: with its version and host.
        version: this coordinator's; empty: any will do.
        host: where this coordinator runs.
    """
    if not version or _release_of(worker.registration.version) == _release_of(version):
        return ""
    return str(
        troubles.versions_differ(
            worker.name,
            worker.registration.host,
            worker.registration.version,
            coordinator_host=host,
            ours=version,
        )
    )


def _version_note(theirs: str, ours: str) -> str:
    """What to say of a version that differs and is allowed; empty when it does not differ."""
    return f" with dtd {theirs}, the coordinator has {ours}" if ours and theirs != ours else ""


def _release_of(version: str) -> list[str]:
    """Major and minor number: "0.1.7" is of release 0.1."""
    return version.split(".")[:_RELEASE_PARTS]


def name_holder(books: ClusterState, message: m.Register, now: float) -> Worker | None:
    """The other worker that lives under the name of this one; None when it may have the name.

    Args:
        books: what the coordinator knows.
        message: how a worker introduces itself.
        now: the clock, in seconds.
    """
    known = books.workers.get(message.name)
    if known is None or known.state in GONE or known.incarnation == message.incarnation:
        return None
    if known.registration.instance in ("", message.instance):
        return None
    silent = books.detector.silence_s(known.name, now) > books.heartbeat_timeout_s
    # A member is evicted when the detector says so, and not while its generation commits.
    return None if silent and known.state not in MEMBERS else known
