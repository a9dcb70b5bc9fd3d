"""Messages of workers: they register, ask, and report of their jobs.

Reports are kept and go to the membership core.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from dtd.address import ANY_IPV4, is_literal, is_loopback
from dtd.checkpoint.choice import complete, fewest, missing, part_of
from dtd.cluster.events import FromWorker
from dtd.cluster.generation import datasets
from dtd.cluster.generation.checkpoints import CONTRADICTED, VERIFIED
from dtd.cluster.records import Job
from dtd.cluster.transitions import JobState, WorkerState
from dtd.cluster.workers import registration
from dtd.coordinator.coordinator import Coordinator
from dtd.coordinator.core import Core, checkpoint_resource
from dtd.diagnostics import Diagnostic, name_taken
from dtd.engine.shards import ShardSet
from dtd.errors import ErrorCode, ProtocolError
from dtd.net.link import Link
from dtd.observe.metrics.worker import next_in_ring
from dtd.wire import messages as m

log = structlog.get_logger()


def register(
    coordinator: Coordinator, link: Link, message: m.Register, _payload: memoryview
) -> None:
    """The worker at the end of this connection registers; the core decides what it does then."""
    coordinator.port.check(link, message)
    name = message.name
    host, *others = _data_hosts(coordinator, link, message)
    clash = _name_taken(coordinator, message)
    if clash is not None:
        if coordinator.note(clash):
            log.warning("name_taken", message=clash.message, remedy=clash.remedy)
        raise ProtocolError(ErrorCode.REFUSED, clash.message, remedy=clash.remedy)
    coordinator.links.register(link, message)
    coordinator.diagnostics.over(link.peer_host(), name)
    coordinator.deletions.registered(name)
    coordinator.models.registered(name)
    known = coordinator.membership.cluster_of(name).workers.get(name)
    released = known is not None and known.state is WorkerState.RELEASED
    coordinator.metrics.registered(message, released=released)
    registered = dataclasses.replace(message, data_host=host, others=tuple(others))
    coordinator.handle(FromWorker(name=name, message=registered))


def _data_hosts(core: Core, link: Link, message: m.Register) -> tuple[str, ...]:
    """Return the addresses for other workers, best first: those on which this worker listens.

    The one from which it calls need not be one of its host's.  A loopback address, or a name that
    the coordinator has for its own host, comes first.  The address of a router that translates
    comes last, because workers behind the same one reach each other at their own addresses.
    """
    if message.data_host not in ("", ANY_IPV4):
        return message.data_host, *message.others
    seen, own = core.port.host_of(link), message.others
    if own and (seen in own or (message.data_host and ":" in seen)):
        return own
    if message.data_host and ":" in seen:
        why = (
            f"{message.name} listens on {ANY_IPV4}, which is IPv4 only, and other workers"
            f" would call it at {seen}"
        )
        remedy = (
            f'set listen = "[::]:PORT" for {message.name}, which serves IPv4 as well, or'
            " advertise = an IPv4 address of its host"
        )
        core.port.note_refusal(link.peer_host(), why, remedy)
        raise ProtocolError(ErrorCode.REFUSED, why, remedy=remedy)
    is_first = is_loopback(seen) or not is_literal(seen)
    return (seen, *own) if is_first else (*own, seen)


def _name_taken(core: Core, message: m.Register) -> Diagnostic | None:
    """Whether a worker with another state directory lives under this name."""
    holder = registration.name_holder(core.membership.cluster_of(message.name), message, core.now)
    if holder is None:
        return None
    process = holder.registration
    place = f"{process.host} (pid {process.pid})" if process.pid else "a disconnected host"
    later = f"{message.host} (pid {message.pid})"
    return name_taken(message.name, place, later)


# --- the parts of a checkpoint -------------------------------------------------------------------


async def parts_of(core: Core, worker: str, request: m.GetParts) -> m.Parts:
    """Tell a worker which others have the parts of the checkpoint that its job starts from.

    A checkpoint of a sharded state is on many workers' disks.  A job that starts from it does not
    have to be sharded, or be so in the same way; so a worker fetches the other parts and assembles
    them.  It is given tickets for the checkpoint that its job names, and for nothing else.
    """
    nothing = m.Parts(job=request.job, step=request.step)
    job = core.membership.cluster_of(worker).job
    # Who joins a job that trains gets the state from its members.
    if not request.job or job is None or job.state is JobState.RUNNING:
        return nothing
    if (request.job, request.step) != (job.from_job, job.from_step):
        return nothing
    listed = await core.in_store(core.store.checkpoints, request.job)
    holders = _newest(listed, request.step)
    connected = core.links.names()
    there = [one for one in holders if one["worker"] in connected]
    if not holders or _is_handed_over(core, worker, there):
        return nothing
    lacks = missing([part_of(one) for one in there])
    away = ", ".join(
        f"{one['worker']} ({part_of(one) & lacks})"
        for one in holders
        if one not in there and part_of(one) & lacks
    )
    first = [there[index] for index in fewest([part_of(one) for one in there])]
    ordered = [*first, *(one for one in there if one not in first)][: m.MAX_PART_HOLDERS]
    return m.Parts(
        job=request.job,
        step=request.step,
        digest=next((one["digest"] for one in holders if one["digest"]), ""),
        holders=tuple(
            m.PartHolder(
                name=one["worker"],
                part=tuple(one["part"]),
                **core.source(one["worker"], checkpoint_resource(one["directory"]))._asdict(),
            )
            for one in ordered
        ),
        missing=f"{lacks}, which were on {away}" if lacks else "",
    )


def _is_handed_over(core: Core, worker: str, holders: Sequence[Mapping[str, Any]]) -> bool:
    """Whether another worker of the same job has all of it, and this one nothing."""
    names = {one["worker"] for one in holders if part_of(one).is_whole}
    workers = core.membership.cluster_of(worker).workers
    return worker not in {one["worker"] for one in holders} and any(
        name in workers and not workers[name].serves for name in names
    )


def _newest(listed: Sequence[dict[str, Any]], step: int) -> list[dict[str, Any]]:
    """All entries of a step's checkpoint, of the newest with step 0; confirmed ones come first."""
    sound = [one for one in listed if one["confirmation"] != CONTRADICTED]
    found = (group for group in complete(sound) if step in (0, group[0]["step"]))
    return sorted(next(found, []), key=lambda one: one["confirmation"] != VERIFIED)


# --- reports and questions -----------------------------------------------------------------------


def on_report(
    coordinator: Coordinator, link: Link, message: m.Message, payload: memoryview
) -> None:
    """Handle a registered worker's message."""
    name = coordinator.links.speaker(link)
    _check_form(message)
    answer = ANSWERED.get(type(message))
    if answer is not None:
        answer(coordinator, link, name, message)
        return
    if not coordinator.reports.accepts(name, message):
        return
    if coordinator.membership.hears(name, message):
        _keep(coordinator, name, message, payload)
    coordinator.handle(FromWorker(name=name, message=message))


def _check_form(message: m.Message) -> None:
    """Check what the fields' own kinds do not: that parts of a state are sets of shards."""
    if isinstance(message, m.Frozen | m.Warmed):
        for held in message.held:
            ShardSet.from_wire(held.part)
    elif isinstance(message, m.Finished | m.CheckpointSaved):
        ShardSet.from_wire(message.part)


def _answer_parts(coordinator: Coordinator, link: Link, name: str, message: m.GetParts) -> None:
    async def answer() -> None:
        link.send(await parts_of(coordinator, name, message))

    coordinator.answers.begin(link, message, answer)


def _answer_data(coordinator: Coordinator, link: Link, name: str, message: m.GetData) -> None:
    coordinator.handle(FromWorker(name=name, message=message))
    found = datasets.sources(coordinator.membership.cluster_of(name), name, message.name)
    connected = coordinator.links.names()
    resource = f"data/{found.digest}"
    link.send(
        m.DataSources(
            job=message.job,
            name=message.name,
            digest=found.digest,
            share=found.share,
            shares=found.shares,
            sources=tuple(
                m.DataSource(
                    name=one.name,
                    host=place.host,
                    port=place.port,
                    complete=datasets.is_complete(one.data[message.name]),
                    ticket_expires_s=place.ticket_expires_s,
                    ticket_key=place.ticket_key,
                    others=place.others,
                )
                for one in found.workers[: m.MAX_PART_HOLDERS]
                if one.name in connected
                for place in (coordinator.source(one.name, resource),)
            ),
        )
    )


ANSWERED: Final[Mapping[type[m.Message], Callable[[Coordinator, Link, str, Any], None]]] = {
    m.GetPackage: lambda coordinator, link, _, message: coordinator.transfer_of(message).ask(
        link, message
    ),
    m.GetParts: _answer_parts,
    m.GetData: _answer_data,
    m.ModelsHeld: lambda coordinator, _, name, message: coordinator.models.heard(name, message),
    m.ModelPinned: lambda coordinator, _, name, message: coordinator.models.heard(name, message),
    m.CheckpointDropped: lambda coordinator, _, name, message: coordinator.deletions.dropped(
        name, message
    ),
    m.Measured: lambda coordinator, _, name, message: coordinator.broker.measured(name, message),
}
"""Messages whose answer, or the whole of which, is not the core's."""


def _keep(coordinator: Coordinator, name: str, message: m.Message, payload: memoryview) -> None:
    """Store a worker's accepted report, and add it to the figures."""
    coordinator.metrics.reported(message, unix_s=time.time())
    if isinstance(message, m.JobOutput):
        coordinator.reports.output(name, message, bytes(payload))
    elif isinstance(message, m.CheckpointSaved):
        coordinator.store_thread.later(coordinator.store.save_checkpoint, name, message)
        coordinator.diagnostics.over(name, kind="disk")
    cluster = coordinator.membership.cluster_of(name)
    job = cluster.job
    if job is not None and getattr(message, "job", "") == job.id:  # of no other job
        to = next_in_ring(cluster.run.roster, name)
        _keep_figures(coordinator, name, job, message, to)


def _keep_figures(
    coordinator: Coordinator, name: str, job: Job, message: m.Message, to: str
) -> None:
    if isinstance(message, m.Progress):
        coordinator.history.progress(job.identity, message)
        coordinator.trackers.reported(job, message)
    elif isinstance(message, m.Evaluated):
        coordinator.history.evaluated(job.identity, message)
        coordinator.sweeps.evaluated(message)
        coordinator.trackers.reported(job, message)
    elif isinstance(message, m.Heartbeat):
        coordinator.history.heartbeat(name, job.identity, message, to)
