"""Registration of a worker at the coordinator, and whether it may work here.

Releases of dtd may work together that are equal up to the patch level: a patch can so be rolled out
host by host.  It changes neither messages nor numbers; a minor release may change either.

A name belongs to one living worker: a later worker with the same name is refused.  A process from
the same state directory (an equal instance) is the same worker: it holds the lock of that
directory, so its predecessor is dead, even if its connection lingers.  A process from elsewhere may
take the name once the earlier worker no longer responds.

Part of the membership machine; changes the cluster's state, adds effects.  `membership.admission`
handles a worker that may.
"""

from __future__ import annotations

from dtd import diagnostics
from dtd.cluster.records import Registration, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import GONE, MEMBERS, WorkerEvent
from dtd.wire import messages as m

_RELEASE_PARTS = 2


def newcomer(message: m.Register) -> Worker:
    """The record of a worker that registers."""
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
            serves=message.serves,
        )
    )
    names = [member.name for member in message.roster]
    worker.generation = message.generation
    worker.rank = names.index(worker.name) if worker.name in names else 0
    return worker


def greet(cluster: ClusterState, worker: Worker) -> None:
    """Confirm a worker's registration."""
    cluster.send(worker.name, _registered(cluster))
    note = _version_note(worker.registration.version, cluster.identity.version)
    cluster.incident("worker_registered", f"{worker.name} registered{note}", worker=worker.name)


def tell_last_end(cluster: ClusterState, message: m.Register, known: Worker | None) -> None:
    """Report that the worker's previous process ended abnormally, if its successor knows how.

    The operator's own signal is not reported.
    """
    same = known is not None and (
        known.liveness.signalled or known.incarnation == message.incarnation
    )
    if not message.last_end or same:
        return
    if message.name in cluster.setbacks.crashed_workers:
        cluster.setbacks.last_ends[message.name] = message.last_end
    cluster.incident(
        "worker_crashed", f"{message.name}'s last process {message.last_end}", worker=message.name
    )


def _registered(cluster: ClusterState, *, refused: str = "") -> m.Registered:
    return m.Registered(
        heartbeat_interval_s=cluster.heartbeat_interval_s,
        heartbeat_timeout_s=cluster.heartbeat_timeout_s,
        refused=refused,
    )


def is_foreign(cluster: ClusterState, worker: Worker) -> bool:
    """Whether its dtd release is incompatible: it stays connected, and gets no work.

    One that takes part in a generation may finish its job; its next process is asked again.
    """
    why = _version_refusal(worker, version=cluster.identity.version, host=cluster.identity.host)
    if why:
        cluster.move_worker(worker, WorkerEvent.INCOMPATIBLE)
        worker.foreign, worker.reason = True, why
        cluster.send(worker.name, _registered(cluster, refused=why))
        cluster.incident("worker_refused", f"{worker.name} is refused: {why}", worker=worker.name)
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
        diagnostics.versions_differ(
            worker.name,
            worker.registration.host,
            worker.registration.version,
            coordinator_host=host,
            ours=version,
        )
    )


def _version_note(theirs: str, ours: str) -> str:
    """A note on a different but compatible version; empty when it does not differ."""
    return f" with dtd {theirs}, the coordinator has {ours}" if ours and theirs != ours else ""


def _release_of(version: str) -> list[str]:
    """Major and minor number: "0.1.7" is of release 0.1."""
    return version.split(".")[:_RELEASE_PARTS]


def name_holder(cluster: ClusterState, message: m.Register, now: float) -> Worker | None:
    """The living worker that already has this name; None when the name is free.

    Args:
        cluster: the coordinator's state.
        message: how a worker introduces itself.
        now: the clock, in seconds.
    """
    known = cluster.workers.get(message.name)
    if known is None or known.state in GONE or known.incarnation == message.incarnation:
        return None
    if known.registration.instance in ("", message.instance):
        return None
    silent = cluster.detector.silence_s(known.name, now) > cluster.heartbeat_timeout_s
    # A member is evicted when the detector says so, and not while its generation commits.
    return None if silent and known.state not in MEMBERS else known
