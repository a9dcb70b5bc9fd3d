"""A real coordinator within this process, honest workers that train with it, and room for others.

Connections are links of the coordinator itself over transports that only record; the caller at the
other end sends what it likes.  The honest workers run `dtd.cluster.member`, as real ones
do, with a trainer that commits a step whenever it is told to.  Time is the loop's and is moved by
hand.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgpack

from dtd import __version__
from dtd.address import Address
from dtd.cluster import member
from dtd.config import CoordinatorConfig
from dtd.coordinator.daemon import Coordinator
from dtd.coordinator.store.store import Store
from dtd.job import parse_job, to_mapping
from dtd.net.link import Link
from dtd.security.identity import LOCAL, Identity
from dtd.wire import messages as m
from dtd.wire.frames import LARGEST_MAX_PAYLOAD_BYTES, FrameDecoder, frame_bytes
from dtd.wire.greeting import hello
from dtd.worker.cluster_access import proved
from scripts.fuzz_links import put

T = TypeVar("T")

TICK_S: Final = 0.25
MOST_ROUNDS: Final = 200
ANSWERED_S: Final = 60.0
"""Time limit of answers: they come from other threads, which this machine may keep waiting."""

JOB: Final = (
    '[job]\nname="digits"\ntask="digits"\nsteps=1000000\nglobal_batch_size=64\n'
    "[elastic]\nsettle_s=0\nmin_workers=1\nmax_workers={workers}\n"
)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock moves only by hand, however busy this machine is."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def time(self) -> float:
        """Seconds."""
        return self.now


class Wire(asyncio.Transport):
    """The other end of a link of the coordinator; records its messages."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[m.Message, bytes]] = []
        self.closed = False
        self.link: Link | None = None
        self._decoder = FrameDecoder(max_payload_bytes=LARGEST_MAX_PAYLOAD_BYTES)

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Nothing, as for a Unix socket."""
        return default

    def writelines(self, list_of_data: Any) -> None:
        """All pieces arrive."""
        for piece in list_of_data:
            for frame in self._decoder.feed(bytes(piece)):
                self.heard.append((m.decode_message(frame.header), bytes(frame.payload)))

    def close(self) -> None:
        """The link is told soon, as of every loss."""
        if not self.closed and self.link is not None:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.link.connection_lost, None)

    abort = close

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """All is taken at once."""

    def get_write_buffer_size(self) -> int:
        """All is taken at once."""
        return 0

    def pause_reading(self) -> None:
        """Ignored: a caller here waits for nothing."""

    def resume_reading(self) -> None:
        """Ignored: a caller here waits for nothing."""


class Caller:
    """A caller with a connection to the coordinator.

    Args:
        cluster: the coordinator's cluster.
        who: the caller's identity.
        role: what the connection is for.
    """

    def __init__(self, cluster: Cluster, who: Identity, role: m.Role) -> None:
        self.wire = Wire()
        cluster.wires = [*(one for one in cluster.wires if not one.closed), self.wire]
        self.link = self.wire.link = cluster.coordinator._new_link()  # noqa: SLF001 - as its servers do
        self.link.identity = who
        self.link.connection_made(self.wire)
        self.say(hello(role, who.name))

    @property
    def is_open(self) -> bool:
        """Whether the coordinator still listens."""
        return not (self.wire.closed or self.link.closing)

    def say(self, message: m.Message, payload: bytes = b"") -> None:
        """Send something, if it can be sent at all."""
        if self.is_open:
            put(self.link, frame_bytes(m.encode_header(message), payload))

    def heard(self) -> Iterator[tuple[m.Message, bytes]]:
        """Yield the messages received here since the last call."""
        heard, self.wire.heard = self.wire.heard, []
        yield from heard


_incarnations = itertools.count(1000)


class Honest:
    """A worker that follows the protocol.

    Args:
        cluster: where it works.
        name: its own.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.who = worker_identity(name)
        self.lost_connections = -1
        self.begun = 0
        self.begin_again()

    def begin_again(self) -> None:
        """A new process."""
        self.begun += 1
        self.held = m.Held(job="", generation=0, step=0, digest="", where="none")
        self.core = member.Member(registration(self.name))
        self._connect()

    def _connect(self) -> None:
        self.lost_connections += 1
        self.caller = Caller(self.cluster, self.who, m.Role.WORKER)
        self._greeted = False

    def live(self) -> bool:
        """Do what there is to do; returns whether there was anything."""
        if not self.caller.is_open:
            self._connect()
        busy = False
        for message, _ in self.caller.heard():
            busy = True
            if isinstance(message, m.Welcome):
                self._greeted = True
                self.feed(member.ControlOpened())
            elif not isinstance(message, m.Error | m.Goodbye | m.HeartbeatAck):
                self.feed(member.FromCoordinator(message=message))
        return busy

    def returning(self) -> m.Register:
        """Return the same process's REGISTER when it connects again."""
        (told,) = self.core.handle(member.ControlOpened(), 0.0)
        assert isinstance(told, member.Tell)
        assert isinstance(told.message, m.Register)
        return proved(told.message, self.core.assign)

    def beat(self) -> None:
        """The heartbeat of a thread that waits for its ring or computes, as it should."""
        if not self._greeted:
            return
        assign = self.core.assign
        trains = assign is not None and self.core.state is member.MemberState.RUNNING
        self.caller.say(
            m.Heartbeat(
                state=self.core.state.value,
                job=assign.job if assign is not None else "",
                generation=assign.generation if assign is not None else 0,
                step=self.held.step,
                step_s=0.1 if trains else 0.0,
                own_s=0.1 if trains else 0.0,
            )
        )

    def commit(self, step: int) -> None:
        """A step is committed."""
        assign = self.core.assign
        assert assign is not None
        self.held = replace(
            self.held, job=assign.job, generation=assign.generation, step=step, where="memory"
        )
        if assign.rank == 0:
            self.caller.say(
                m.Progress(
                    job=assign.job,
                    generation=assign.generation,
                    step=step,
                    epoch=0,
                    loss=0.5,
                    learning_rate=0.1,
                    grad_norm=1.0,
                    rows=64,
                    step_s=0.1,
                    compute_s=0.1,
                    comm_s=0.0,
                    exposed_s=0.0,
                    skipped=False,
                    skipped_steps=0,
                )
            )

    def freeze(self, reason: str) -> None:
        """Leave the generation."""
        assign = self.core.assign
        if assign is None or self.core.state not in (
            member.MemberState.RUNNING,
            member.MemberState.FORMING,
        ):
            return
        froze = member.TrainerFroze(
            generation=assign.generation,
            held=self.held,
            prepared_generation=self.held.generation,
            prepared_step=self.held.step,
            suspect="",
            evidence="",
            reason=reason,
            compared_step=self.held.step,
            compared_digest="d",
        )
        self.feed(froze)

    def finish(self) -> None:
        """The job is stopped, and this was its last step."""
        assign = self.core.assign
        assert assign is not None
        finished = m.Finished(
            job=assign.job,
            generation=assign.generation,
            held_generation=self.held.generation,
            step=self.held.step,
            digest="d",
            result={"steps": self.held.step},
        )
        self.feed(member.TrainerFinished(finished=finished))

    def feed(self, event: member.Event) -> None:
        """Hand an event to the core, and do what it answers."""
        for effect in self.core.handle(event, 0.0):
            self._perform(effect)

    def _perform(self, effect: member.Effect) -> None:
        if isinstance(effect, member.Tell):
            message = effect.message
            if isinstance(message, m.Register):
                message = proved(message, self.core.assign)
            self.caller.say(message)
        elif isinstance(effect, member.WarmUp):
            held = replace(self.held, job=effect.prepare.job)
            self.feed(member.TrainerWarm(warmed=warmed(effect.prepare.job, held)))
        elif isinstance(effect, member.FormRing):
            assign = effect.assign
            self.held = m.Held(
                job=assign.job,
                generation=assign.held_generation,
                step=assign.held_step,
                digest="",
                where="memory",
            )
            self.feed(member.TrainerRunning(generation=assign.generation, step=assign.held_step))
        elif isinstance(effect, member.BreakRing):
            self.freeze(effect.reason)
        elif isinstance(effect, member.EndAtBoundary):
            assert self.core.assign is not None
            self.cluster.flagged(self.core.assign.generation, stop=effect.stop)
        elif isinstance(effect, member.SaveState):
            self.caller.say(saved(effect.save))
        elif isinstance(effect, member.ProbePeer):
            probed = m.Probed(name=effect.probe.name, reachable=True)
            self.feed(member.ProbeAnswered(probed=probed))
        else:
            self.caller.wire.close()
            self.begin_again()


class Cluster:
    """One coordinator and its honest workers, in a directory that is gone afterwards.

    Args:
        honest: how many workers train.
        workers: how many the job takes at most.
    """

    def __init__(self, *, honest: int = 2, workers: int = 2) -> None:
        self.loop = VirtualLoop()
        self.begun_s = self.loop.now
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - made anew
        self.directory = Path(tempfile.mkdtemp(prefix="dtd-fuzz-", dir=base))
        self.spec = to_mapping(parse_job(JOB.format(workers=workers), source="fuzz"))
        self._flags: dict[int, bool] = {}
        self.honest: list[Honest] = []
        self.wires: list[Wire] = []
        self.coordinator = self.run(self._start())
        self.job = self.ask(m.SubmitJob(spec=self.spec))["job"]
        for number in range(honest):
            self.honest.append(self.call(Honest, self, f"honest-{number}"))
        self.pass_time(1.0)

    async def _start(self) -> Coordinator:
        config = CoordinatorConfig(
            listen=Address("127.0.0.1", 0),
            state_dir=self.directory,
            socket=self.directory / "s",
        )
        made = Coordinator(config, Store(self.directory))
        await made.start()
        self._running = asyncio.create_task(made.run())
        return made

    def run(self, coroutine: Any) -> Any:
        """Run something on the loop to its end."""
        return self.loop.run_until_complete(coroutine)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function within the loop, as its callbacks are."""

        async def within() -> T:
            return function(*arguments)

        made: T = self.run(within())
        return made

    def restart(self) -> None:
        """The coordinator ends in good order, and another one takes its place."""
        self.run(self._stop())
        self.coordinator = self.run(self._start())

    async def _stop(self) -> None:
        for wire in self.wires:
            wire.close()
        self.wires.clear()
        await asyncio.sleep(0)
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self.coordinator.stop()
        await asyncio.sleep(0)

    def close(self) -> None:
        """Leave nothing behind."""
        self.run(self._stop())
        self.run(self.loop.shutdown_asyncgens())
        self.loop.close()
        shutil.rmtree(self.directory)

    # --- actions -----------------------------------------------------------------------------

    def settle(self) -> None:
        """Deliver all messages until nobody sends any."""
        self.run(self.settled())

    async def settled(self) -> None:
        """The same, within the loop."""
        for _ in range(MOST_ROUNDS):
            await self._quiet()
            busy = [one.live() for one in self.honest]
            if not any(busy):
                return
        raise AssertionError("coordinator and workers do not come to rest")

    async def _quiet(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        await self.coordinator.settled()
        await self.coordinator.in_store(lambda: None)
        await asyncio.sleep(0)

    def flagged(self, generation: int, *, stop: bool) -> None:
        """The ring carries the word: its generation ends after the next step."""
        self._flags[generation] = self._flags.get(generation, False) or stop

    def pass_time(self, seconds: float) -> None:
        """Steps are committed and heartbeats sent."""
        self.run(self._pass_time(seconds))

    async def _pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.loop.now += TICK_S
            self._step()
            for one in self.honest:
                one.beat()
            await self.settled()

    def _step(self) -> None:
        """All honest members of a ring commit one step together, if all of them run."""
        rings: dict[int, list[Honest]] = {}
        for one in self.honest:
            if one.core.assign is not None:
                rings.setdefault(one.core.assign.generation, []).append(one)
        for generation, ranks in rings.items():
            running = [one for one in ranks if one.core.state is member.MemberState.RUNNING]
            if not running or len(running) < len(ranks):
                for one in running:
                    one.freeze("the ring is broken")
                continue
            step = max(one.held.step for one in running) + 1
            for one in running:
                one.commit(step)
            if generation in self._flags:
                stop = self._flags.pop(generation)
                for one in running:
                    one.finish() if stop else one.freeze("end at a step boundary")

    def ask(self, request: m.Message, who: Identity | None = None) -> dict[str, Any]:
        """An operator's request and its answer; an empty one means that it was refused."""
        answer: dict[str, Any] = self.run(self._ask(request, who))
        return answer

    async def _ask(self, request: m.Message, who: Identity | None) -> dict[str, Any]:
        caller = Caller(self, who or OPERATOR, m.Role.CTL)
        caller.say(request)
        until_s = time.monotonic() + ANSWERED_S
        while time.monotonic() < until_s:
            await self._quiet()
            for message, payload in caller.heard():
                if isinstance(message, m.Result):
                    caller.wire.close()
                    answer: dict[str, Any] = msgpack.unpackb(payload)
                    return answer
                if isinstance(message, m.Error):
                    return {}
        raise AssertionError(f"{type(request).__name__} is not answered")


OPERATOR: Final = Identity(role=LOCAL, name="uid 0", where="socket", uid=0)


def worker_identity(*names: str) -> Identity:
    """With a credential for workers of these names."""
    return Identity(role="worker", name=names[0], where="socket", workers=names)


def registration(name: str) -> m.Register:
    """A new process introduces itself."""
    return m.Register(
        name=name,
        incarnation=next(_incarnations),
        pid=1,
        host="h",
        device="cpu",
        data_host="127.0.0.1",
        data_port=1,
        version=__version__,
        instance=name,
    )


def warmed(job: str, held: m.Held) -> m.Warmed:
    """Model and data are here, as with all others."""
    return m.Warmed(
        job=job,
        dataset_rows=100,
        dataset_fingerprint="f",
        plan_digest="p",
        numerics_fingerprint="n",
        parameters=1,
        steps_total=1_000_000,
        held=(held,),
    )


def saved(save: m.Save) -> m.CheckpointSaved:
    """A checkpoint of this state is on the disk."""
    name = f"g{save.generation:06}-s{save.step:09}"
    return m.CheckpointSaved(
        job=save.job,
        generation=save.generation,
        step=save.step,
        digest="d",
        size_bytes=1,
        directory=f"/state/checkpoints/{save.job}/{name}",
        metrics={},
        kept=(name,),
    )
