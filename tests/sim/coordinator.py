"""The simulated coordinator process: membership core, control connections and a durable store.

The counterpart of `dtd.coordinator.daemon`: effects are performed in the order of
`dtd.cluster.events`, in which some wait for the store.  The store outlives the process.
"""

from __future__ import annotations

import pickle
from functools import partial
from typing import Final

from dtd.cluster.events import (
    CancelRequested,
    Disconnect,
    Effect,
    Event,
    FromWorker,
    Incident,
    Item,
    JobEnded,
    JobSaved,
    Outbox,
    SaveJob,
    Send,
    Submitted,
    Ticked,
    WorkerLost,
)
from dtd.cluster.several_jobs import pools
from dtd.cluster.several_jobs.pools import Pools
from dtd.cluster.transitions import JobState
from dtd.cluster.workers import registration
from dtd.wire import messages as m
from tests.sim.network import Port
from tests.sim.scheduler import Timer
from tests.sim.store import SimulatedStore
from tests.sim.surroundings import COORDINATOR, Surroundings

Note = partial[None]
BEGAN: Final = 1_000_000
TICKS_PER_S: Final = 10
"""The clock from which numbers of generations follow: seconds are too long for so many faults."""


def _as_it_is_now(effect: SaveJob | JobEnded) -> SaveJob | JobEnded:
    """A copy, which later changes of the job leave alone; much faster than `copy.deepcopy`."""
    made: SaveJob | JobEnded = pickle.loads(pickle.dumps(effect))
    return made


class CoordinatorProcess:
    """One life of the coordinator.

    Args:
        surroundings: clock, network, random generators, oracle, story.
        store: the store, with the records of earlier processes.
    """

    def __init__(self, surroundings: Surroundings, store: SimulatedStore) -> None:
        self.surroundings = surroundings
        self.store = store
        self.alive = True
        unfinished = store.open()
        last, clock = store.last_generation(), int(surroundings.scheduler.now * TICKS_PER_S)
        self.membership = Pools(
            heartbeat_interval_s=surroundings.heartbeat_interval_s,
            heartbeat_timeout_s=surroundings.heartbeat_timeout_s,
            last_generation=max(last, BEGAN + clock) if store.has_jobs() else 0,
        )
        self._ports: dict[str, Port] = {}
        self._names: dict[Port, tuple[str, int]] = {}
        self._outbox: Outbox[Note, Port | None] = Outbox()
        self._timer: Timer | None = None
        surroundings.oracle.beliefs.started(surroundings.scheduler.now)
        for job in store.ended():
            if job.id not in surroundings.oracle.ended_jobs:
                surroundings.oracle.ended(job, written=True)
        for job in pools.in_order(unfinished):
            self.handle(Submitted(job=job))
        surroundings.network.listen(COORDINATOR, self)

    def crash(self) -> None:
        """Crash immediately; unsaved state is lost."""
        self.alive = False
        self.store.close()
        self.surroundings.network.vanish(COORDINATOR)
        if self._timer is not None:
            self._timer.cancel()

    # --- connections -----------------------------------------------------------------------

    def accept(self, port: Port, greeting: object) -> bool:
        """Accept a worker's connection; see `tests.sim.network.Host`."""
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
            cluster = self.membership.cluster_of(content.name)
            if registration.name_holder(cluster, content, now) is not None:
                port.close("the name is taken")
                return True
            old = self._ports.get(content.name)
            if old is not None:
                del self._names[old]
                old.close("registered again")
            self._ports[content.name] = port
            self._names[port] = content.name, content.incarnation
            self.surroundings.oracle.beliefs.connected(content.name)
        if port in self._names:
            self._from_worker(self._names[port][0], content)
        return True

    def _from_worker(self, name: str, message: m.Message) -> None:
        self.surroundings.oracle.beliefs.heard(name, self.surroundings.scheduler.now)
        counts = self.membership.hears(name, message)
        self.handle(FromWorker(name=name, message=message))
        if isinstance(message, m.CheckpointSaved) and counts and self.alive:
            self.store.save_checkpoint(name, message)

    def _on_closed(self, port: Port, reason: str) -> None:
        known = self._names.pop(port, None)
        if known is not None:
            name, incarnation = known
            if self._ports.get(name) is port:
                del self._ports[name]
            self.handle(WorkerLost(name=name, incarnation=incarnation, reason=reason))

    # --- core ------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Pass an event to the core and perform the resulting effects.

        Raises:
            RequestRefused: the core refuses the request.
        """
        now = self.surroundings.scheduler.now
        decided: list[Item[Note, Port | None]] = []
        for effect in self.membership.handle(event, now):
            port = self._port_of(effect)
            kept = _as_it_is_now(effect) if isinstance(effect, SaveJob | JobEnded) else effect
            decided.append(Item(kept, port))
            if isinstance(effect, Send) and port is not None:
                self._tell_oracle(effect, port)
            elif isinstance(effect, Incident):
                self.surroundings.oracle.foresees(effect)
        self.membership.check_invariants()
        evicted = {one.effect.name for one in decided if isinstance(one.effect, Disconnect)}
        connected = self._ports.keys() - evicted  # their connections close once this is stored
        for cluster in self.membership.all_clusters():
            self.surroundings.oracle.membership(cluster, now, connected)
        self.surroundings.oracle.allotments.check(self.membership, now)
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.membership.next_deadline(now)
        if deadline is not None:
            self._timer = self.surroundings.scheduler.at(deadline, self._on_deadline)
        for item in decided:
            self._do(self._outbox.put(item))

    def ask(self, event: Event) -> None:
        """Handle an operator's request, which is answered once the result is stored.

        Raises:
            RequestRefused: the core refuses the request.
        """
        if isinstance(event, CancelRequested):
            job = self.membership.cluster_with(event.job).job
            if job is not None and job.id == event.job and job.state is JobState.SAVING:
                self.surroundings.oracle.causes.discarded.add(job.id)
        self.handle(event)
        if isinstance(event, CancelRequested):
            answer = partial(self.surroundings.oracle.answered, event.job, self.store)
            self._do(self._outbox.put(Item(answer, None)))

    def _tell_oracle(self, effect: Send, port: Port) -> None:
        self.surroundings.oracle.beliefs.told(effect.name, effect.message)
        if isinstance(effect.message, m.Release) and effect.message.state == "evicted":
            self.surroundings.oracle.lineage.expelled(*self._names[port])

    def _on_deadline(self) -> None:
        if self.alive:
            self.handle(Ticked())

    def _port_of(self, effect: Effect) -> Port | None:
        """The connection for which an effect is meant; a later one must not receive it."""
        return self._ports.get(effect.name) if isinstance(effect, Send | Disconnect) else None

    def _do(self, items: list[Item[Note, Port | None]]) -> None:
        for item in items:
            if self.alive:
                self._perform(item.effect, item.about)

    def _perform(self, effect: Effect | Note, port: Port | None) -> None:
        if isinstance(effect, partial):
            effect()
        elif isinstance(effect, SaveJob):
            self._save(effect)
        elif isinstance(effect, Incident):
            self.surroundings.tell(effect.message)
            self.surroundings.oracle.incident(effect)
        elif isinstance(effect, JobEnded):
            written = self.store.has_ended(effect.job.id)
            self.surroundings.oracle.ended(effect.job, written=written)
        elif port is not None and isinstance(effect, Send):
            if self._ports.get(effect.name) is port:
                self.surroundings.oracle.beliefs.says(effect.name, effect.message)
            self.surroundings.oracle.told(effect.name, effect.message, self.store)
            self.surroundings.said.setdefault(effect.name, []).append(effect.message)
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
        self.surroundings.oracle.keeping.written(effect.job)
        failure = self.store.save(effect.job)
        if effect.announces:
            saved = JobSaved(job=effect.job.id, generation=effect.announces, failure=failure)
            self.handle(saved)
        self._do(self._outbox.written())

    def _disconnect(self, port: Port, reason: str) -> None:
        name = self._names.pop(port, ("", 0))[0]
        if self._ports.get(name) is port:
            del self._ports[name]
        port.close(reason)
