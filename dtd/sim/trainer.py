"""A modelled trainer: computes for a while, reduces integers, commits; the loop of `dtd.train`.

Its life follows `dtd.worker.trainer`: warm up, then one generation after another, on a thread of
its own (`dtd.sim.thread`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Protocol

from dtd.core import member
from dtd.core.control_word import ControlEntry, ControlWord, encode_entry, reduce_entries
from dtd.errors import RingBroken, TaskError
from dtd.sim import reports
from dtd.sim.data_port import DataPort, FetchHello
from dtd.sim.oracle import require
from dtd.sim.replica import Disk, State, after_commit, fresh
from dtd.sim.ring_endpoint import RingEndpoint
from dtd.sim.surroundings import Surroundings
from dtd.sim.thread import Busy, Routine, Thread, Wait
from dtd.wire import messages as m


@dataclass(slots=True)
class Flags:
    """What the event loop asks for in the next control word."""

    stop: bool = False
    leave: bool = False
    end: bool = False


class Shell(Protocol):
    """What a trainer uses of its process."""

    name: str
    disk: Disk
    data_port: DataPort
    surroundings: Surroundings
    fails_at_step: int | None

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later, unless the process has died by then."""
        ...

    def feed(self, event: member.Event) -> None:
        """Hand an event to the member core."""
        ...

    def tell(self, message: m.Message) -> None:
        """Send something to the coordinator, if it can be reached."""
        ...


class Trainer:
    """One job's training thread.

    Args:
        shell: the process that it lives in.
        prepare: the job.
    """

    def __init__(self, shell: Shell, prepare: m.Prepare) -> None:
        self.state: State | None = None
        self.flags = Flags()
        self._shell = shell
        self._job = prepare.job
        model = prepare.spec["model"]
        self._total = int(model["steps"])
        self._buckets = [int(elements) for elements in model["buckets"]]
        self._checkpoint_every = int(model["checkpoint_every"])
        self._thread = Thread(shell.after)

    @property
    def key(self) -> tuple[int, int]:
        """What it has in memory, (0, 0) for nothing."""
        return self.state.key if self.state is not None else (0, 0)

    def held(self) -> m.Held:
        """What this worker can start from: memory, else its newest checkpoint."""
        if self.state is not None:
            return self.state.held("memory")
        saved = self._shell.disk.newest(self._job)
        return saved.held("checkpoint") if saved is not None else fresh(self._job).held("none")

    def serve(self, ring: RingEndpoint) -> None:
        """Take part in a generation."""
        self.flags = Flags()
        self._thread.run(self._serve(ring))

    def look(self) -> None:
        """Something has happened that it may be waiting for."""
        self._thread.look()

    # --- one generation --------------------------------------------------------------------

    def _serve(self, ring: RingEndpoint) -> Routine:
        assign = ring.assign
        try:
            yield from self._take_over(ring)
            ring.connect()
            yield Wait(ring.is_up, ring)
            outcome = yield from self._train(ring)
        except RingBroken as error:
            self._shell.feed(reports.froze(assign, self.held(), ring.suspect, error.message))
            return "broken"
        except TaskError as error:
            failed = m.Failed(job=self._job, reason=error.message, traceback="")
            self._shell.feed(member.TrainerFailed(failed=failed))
            return "failed"
        if outcome == "yielded":
            why = "the generation ended at a step boundary"
            self._shell.feed(reports.froze(assign, self.held(), "", why))
        else:
            assert self.state is not None
            finished = reports.finished(assign, self.state, stopped=outcome == "stopped")
            self._shell.feed(finished)
        return outcome

    def _take_over(self, ring: RingEndpoint) -> Routine:
        """Have the state that the generation starts from."""
        assign, held = ring.assign, self.held()
        yield Busy(self._draw("load_s"))
        start = (assign.held_generation, assign.held_step)
        if assign.rank == assign.source_rank or (
            (held.generation, held.step) == start and held.where != "none"
        ):
            if self.state is None:
                self.state = self._shell.disk.newest(self._job) or fresh(self._job)
        else:
            self.state = yield from self._fetch(assign)
        self._shell.surroundings.oracle.adopted(assign, self.state)
        if assign.rank == assign.source_rank:
            self._shell.data_port.offer(assign.generation, self.state)
        return ""

    def _fetch(self, assign: m.Assign) -> Generator[Busy | Wait, None, State]:
        fetched: list[State] = []
        ended: list[str] = []
        source = assign.roster[assign.source_rank].name

        def on_state(content: object) -> bool:
            assert isinstance(content, State)
            fetched.append(content)
            self._shell.after(0.0, self.look)
            return True

        def on_closed(reason: str) -> None:
            ended.append(reason)
            self._shell.after(0.0, self.look)

        port = self._shell.surroundings.network.connect(
            self._shell.name,
            source,
            FetchHello(generation=assign.generation),
            receive=on_state,
            closed=on_closed,
        )
        yield Wait(lambda: bool(fetched or ended), None)
        port.close("done")
        if not fetched:
            raise RingBroken(f"state from {source} could not be had: {ended[0]}")
        return fetched[0]

    def _train(self, ring: RingEndpoint) -> Routine:
        """The loop; from here on the state counts as this generation's."""
        assert self.state is not None
        assign, node = ring.assign, ring.node
        self.state = replace(self.state, generation=assign.generation)
        met = False
        while True:
            last = self.state.step == self._total
            node.open_step(self.state.step, () if last else self._buckets)
            if not met or last:
                yield from self._gather(ring, Flags())
            if not met:
                self._joined(assign)
            met = True
            if last:
                yield from self._save(assign)
                return "finished"
            yield from self._backward(ring)
            word = yield from self._gather(ring, self.flags)
            yield Busy(self._draw("optimizer_s"))
            self._commit(assign)
            if self.state.step == self._total:
                continue
            if word.stop or word.leave:
                node.open_step(self.state.step, ())
                yield from self._gather(ring, Flags())
                yield from self._save(assign)
            if word.stop:
                return "stopped"
            if word.leave or word.yield_:
                return "yielded"

    def _joined(self, assign: m.Assign) -> None:
        self._shell.surroundings.oracle.joined(assign)
        running = member.TrainerRunning(generation=assign.generation, step=assign.held_step)
        self._shell.feed(running)

    def _save(self, assign: m.Assign) -> Routine:
        """Rank 0 saves the state before it says that it is done."""
        assert self.state is not None
        if assign.rank == 0:
            yield Busy(self._draw("checkpoint_s"))
            self._publish(self.state)
        return ""

    def _backward(self, ring: RingEndpoint) -> Routine:
        """Gradients become ready bucket by bucket, in whatever order."""
        assert self.state is not None
        if self.state.step == self._shell.fails_at_step:
            raise TaskError(f"the task raised in step {self.state.step}")
        order = list(range(len(self._buckets)))
        self._shell.surroundings.rng.shuffle(order)
        piece_s = self._draw("compute_s") / (len(order) + 1)
        for bucket in order:
            yield Busy(piece_s)
            if ring.why_broken:
                raise RingBroken(ring.why_broken)
            ring.node.start(bucket)
        yield Busy(piece_s)
        yield Wait(ring.node.buckets_done, ring)
        return ""

    def _gather(
        self, ring: RingEndpoint, flags: Flags
    ) -> Generator[Busy | Wait, None, ControlWord]:
        assert self.state is not None
        if ring.why_broken:
            raise RingBroken(ring.why_broken)
        entry = ControlEntry(
            stop=flags.stop,
            leave=flags.leave,
            yield_=flags.end,
            digest_step=self.state.step,
            digest=bytes.fromhex(self.state.content),
        )
        ring.node.offer(encode_entry(entry))
        yield Wait(lambda: ring.node.words() is not None, ring)
        words = ring.node.words()
        assert words is not None
        word = reduce_entries(words)
        require(word.commit, "replicas differ", ring.assign)
        return word

    def _commit(self, assign: m.Assign) -> None:
        assert self.state is not None
        shell = self._shell
        self.state = state = after_commit(self.state, assign.generation)
        shell.surroundings.oracle.committed(assign, state)
        if assign.rank != 0:
            return
        shell.tell(reports.progress(state, rows=len(assign.roster)))
        every = self._checkpoint_every
        if every and state.step % every == 0 and state.step < self._total:
            shell.after(self._draw("checkpoint_s"), lambda: self._publish(state))

    def _publish(self, state: State) -> None:
        self._shell.disk.publish(state)
        self._shell.tell(reports.saved(state))

    def _draw(self, what: str) -> float:
        surroundings = self._shell.surroundings
        return surroundings.draw(getattr(surroundings.pace, what))
