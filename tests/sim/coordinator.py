"""The simulated coordinator process: membership core, control connections and a durable store.

The counterpart of `dtd.coordinator.daemon`: effects are performed in the order of
`dtd.core.membership.outbox`, in which some wait for the store.  The store outlives the process.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from dtd.core.membership import registration
from dtd.core.membership.events import (
    Disconnect,
    Effect,
    Event,
    FromWorker,
    Incident,
    JobEnded,
    JobSaved,
    SaveJob,
    Send,
    Submitted,
    Ticked,
    WorkerLost,
)
from dtd.core.membership.machine import Membership
from dtd.core.membership.outbox import Item, Outbox
from dtd.core.membership.records import Job
from dtd.core.membership.state_records import CoordinatorIdentity
from dtd.core.membership.transitions import ENDED
from dtd.wire import messages as m
from tests.sim.network import Port
from tests.sim.scheduler import Timer
from tests.sim.surroundings import COORDINATOR, Surroundings


@dataclass(slots=True)
class Store:
    """What the coordinator has written down: jobs as they were when they were saved.

    Attributes:
        jobs: by id.
        epoch: how often it has begun anew from a backup, from 1 on.
        full: nothing can be written.
    """

    jobs: dict[str, Job] = field(default_factory=dict)
    epoch: int = 1
    full: bool = False

    def last_generation(self) -> int:
        """The highest generation in any job."""
        return max((job.generation for job in self.jobs.values()), default=0)

    def unfinished(self) -> list[Job]:
        """Jobs that had not ended, oldest first."""
        return [copy.deepcopy(job) for job in self.jobs.values() if job.state not in ENDED]


class CoordinatorProcess:
    """One life of the coordinator.

    Args:
        surroundings: clock, network, chance, oracle, story.
        store: what earlier lives have written.
    """

    def __init__(self, surroundings: Surroundings, store: Store) -> None:
        self.surroundings = surroundings
        self.store = store
        self.alive = True
        self.membership = Membership(
            heartbeat_interval_s=surroundings.heartbeat_interval_s,
            heartbeat_timeout_s=surroundings.heartbeat_timeout_s,
            last_generation=store.last_generation(),
            identity=CoordinatorIdentity(store_id="simulated", epoch=store.epoch),
        )
        self._ports: dict[str, Port] = {}
        self._names: dict[Port, tuple[str, int]] = {}
        self._outbox: Outbox[None, Port | None] = Outbox()
        self._timer: Timer | None = None
        for job in store.jobs.values():
            if job.state in ENDED and job.id not in surroundings.oracle.ended_jobs:
                surroundings.oracle.ended(job, written=True)
        for job in store.unfinished():
            self.handle(Submitted(job=job))
        surroundings.network.listen(COORDINATOR, self)

    def crash(self) -> None:
        """Die at once; what was not written is forgotten."""
        self.alive = False
        self.surroundings.network.vanish(COORDINATOR)
        if self._timer is not None:
            self._timer.cancel()

    # --- connections -----------------------------------------------------------------------

    def accept(self, port: Port, greeting: object) -> bool:
        """A worker connects; see `tests.sim.network.Host`."""
        del greeting
        port.receive = lambda content: self._on_message(port, content)
        port.closed = lambda reason: self._on_closed(port, reason)
        welcome = m.Welcome(
            protocol=1, version="0", name=COORDINATOR, max_payload_bytes=1024 * 1024
        )
        port.send(welcome)
        return True

    def _on_message(self, port: Port, content: object) -> bool:
        assert isinstance(content, m.Message)
        if isinstance(content, m.Register):
            now = self.surroundings.scheduler.now
            if registration.name_holder(self.membership.books, content, now) is not None:
                port.close("the name is taken")
                return True
            old = self._ports.get(content.name)
            if old is not None:
                del self._names[old]
                old.close("registered again")
            self._ports[content.name] = port
            self._names[port] = content.name, content.incarnation
        if port in self._names:
            self.handle(FromWorker(name=self._names[port][0], message=content))
        return True

    def _on_closed(self, port: Port, reason: str) -> None:
        known = self._names.pop(port, None)
        if known is not None:
            name, incarnation = known
            if self._ports.get(name) is port:
                del self._ports[name]
            self.handle(WorkerLost(name=name, incarnation=incarnation, reason=reason))

    # --- core ------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Hand an event to the core and do what it answers.

        Raises:
            RequestRefused: the core says no.
        """
        now = self.surroundings.scheduler.now
        decided: list[Item[None, Port | None]] = []
        for effect in self.membership.handle(event, now):
            port = self._port_of(effect)
            decided.append(Item(copy.deepcopy(effect), port))
            if isinstance(effect, Send) and port is not None:
                self._tell_oracle(effect, port)
        self.surroundings.oracle.membership(self.membership, now)
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.membership.next_deadline(now)
        if deadline is not None:
            self._timer = self.surroundings.scheduler.at(deadline, self._on_deadline)
        for item in decided:
            self._do(self._outbox.put(item))

    def _tell_oracle(self, effect: Send, port: Port) -> None:
        if isinstance(effect.message, m.Release) and effect.message.state == "evicted":
            self.surroundings.oracle.lineage.expelled(*self._names[port])

    def _on_deadline(self) -> None:
        if self.alive:
            self.handle(Ticked())

    def _port_of(self, effect: Effect) -> Port | None:
        """The connection that an effect is meant for; a later one must not get it."""
        return self._ports.get(effect.name) if isinstance(effect, Send | Disconnect) else None

    def _do(self, items: list[Item[None, Port | None]]) -> None:
        for item in items:
            if self.alive:
                self._perform(item.effect, item.about)

    def _perform(self, effect: Effect | None, port: Port | None) -> None:
        if isinstance(effect, SaveJob):
            self._save(effect)
        elif isinstance(effect, Incident):
            self.surroundings.tell(effect.message)
            self.surroundings.oracle.incident(effect)
        elif isinstance(effect, JobEnded):
            written = self.store.jobs[effect.job.id].state in ENDED
            self.surroundings.oracle.ended(effect.job, written=written)
        elif port is not None and isinstance(effect, Send):
            port.send(effect.message)
        elif port is not None:
            assert isinstance(effect, Disconnect)
            self._disconnect(port, effect.reason)

    def _save(self, effect: SaveJob) -> None:
        delay_s = self.surroundings.draw(self.surroundings.pace.store_s)
        self.surroundings.scheduler.after(delay_s, lambda: self._on_saved(effect))

    def _on_saved(self, effect: SaveJob) -> None:
        if not self.alive:
            return
        job, failure = effect.job, "no space" if self.store.full else ""
        if not self.store.full:
            self.store.jobs[job.id] = job
            self.store.epoch = max(self.store.epoch, job.store_epoch)
        if effect.announces:
            self.handle(JobSaved(job=job.id, generation=effect.announces, failure=failure))
        self._do(self._outbox.written())

    def _disconnect(self, port: Port, reason: str) -> None:
        name = self._names.pop(port, ("", 0))[0]
        if self._ports.get(name) is port:
            del self._ports[name]
        port.close(reason)
