"""Buckets by torch.distributed, all else by our ring: Gloo, and NCCL where GPUs are.

`sync.transport = "gloo"` or "nccl".  The ring stays what it is: it decides who takes part, carries
words, votes and the tail of each step, and knows within milliseconds that a member is gone.  Only
buckets whose type torch knows travel in a process group.  A group belongs to one generation: it is
made when the generation's first step with buckets opens (`dtd.transport.rendezvous`), and given up
when the ring breaks.  Whatever goes wrong in the group ends the generation, like a broken ring.

What torch 2.15 offers to end a blocked all-reduce of Gloo was tried out:

- `abort()` and `shutdown()` return at once and end nothing;
- time-outs belong to an operation when it begins, but a rank may compute for as long as it likes;
- dropping the group waits for its operations;
- a connection that is closed ends every operation of both sides, at once.

So the connections are shut down (shutdown(2)), which works on sockets that somebody else reads.
They are told from others by their addresses: each device of Gloo listens on a port of its own, the
ports travel with the rendezvous, and every connection of the group ends at one of them.  NCCL has
an `abort()` that ends what runs.

The group works on memory of its own.  An operation that outlives its generation writes there, and
never into gradients that the next generation computes.  The copies take 0.1 to 0.2 ms for each MiB,
each way, beside what the group does itself.

Gloo adds a bucket up in segments, each in one order, and copies the sums, so all ranks end with the
same bytes; they are not those of our ring.  What travels is neither encrypted nor authenticated.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol

import structlog
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from dtd.core.ring.busy import BusyTime
from dtd.core.ring.chunks import Operation
from dtd.errors import ConfigError, ProcessGroupFailed, ProtocolError, RingBroken
from dtd.transport.api import BreakableCollective, BucketMemory, CommTiming
from dtd.transport.payloads import gather_payloads
from dtd.transport.rendezvous import Rendezvous

log = structlog.get_logger()

RING_GRACE_S: Final = 2.0
"""When a member dies, its connections in the group may end before the ring knows who it was."""

OPERATION_TIMEOUT: Final = timedelta(days=365)
"""A rank may compute for as long as it likes; the ring knows whether it lives."""

_CUDA: Any = torch.cuda  # its constructors have no annotations

DTYPES: Final = {
    name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")
}


_REDUCTIONS: Final = {
    Operation.SUM: dist.ReduceOp.SUM,
    Operation.MAXIMUM: dist.ReduceOp.MAX,
}
"""What a group is asked for; halves of a sum take the ring."""


class Group(Protocol):
    """A process group of one backend, and how it is ended."""

    device: torch.device

    def make(self, store: Store) -> Any:
        """Connect all ranks; returns the backend's group.  Blocks."""
        ...

    def knows(self, places: Sequence[bytes]) -> None:
        """Where the groups of all ranks listen, as each has said in `place`."""
        ...

    @property
    def place(self) -> bytes:
        """Where this rank's listens."""
        ...

    def end(self, group: Any) -> None:
        """End all operations of a group, also those that wait."""
        ...


class GlooGroup:
    """Gloo, on the CPU.

    Args:
        rank: this rank.
        world_size: number of ranks.
        host: this rank's data address.
        connect_timeout_s: how long making the connections may take.

    Raises:
        ConfigError: this process cannot listen at that address.
    """

    device = torch.device("cpu")

    def __init__(self, *, rank: int, world_size: int, host: str, connect_timeout_s: float) -> None:
        self._rank, self._world_size = rank, world_size
        self._timeout = timedelta(seconds=connect_timeout_s)
        self._listeners: set[tuple[str, int]] = set()
        before = set(_listening(host))
        try:
            self._device = dist.ProcessGroupGloo.create_device(hostname=host)
        except RuntimeError as error:
            raise ConfigError(
                f"Gloo cannot listen at this worker's data address {host}: {error}",
                remedy='let [sync] transport be "ring", or start the worker with a --data address'
                " that one of this host's interfaces has",
            ) from error
        self.place = "\n".join(f"{h} {p}" for h, p in set(_listening(host)) - before).encode()

    def knows(self, places: Sequence[bytes]) -> None:
        """Every connection of the group ends at one of these."""
        for place in places:
            for line in place.decode(errors="replace").splitlines():
                host, _, port = line.rpartition(" ")
                if port.isdecimal():
                    self._listeners.add((host, int(port)))

    def make(self, store: Store) -> Any:
        """Connect to all ranks."""
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()  # noqa: SLF001 - it has no other name
        options._timeout = self._timeout  # noqa: SLF001
        options._devices = [self._device]  # noqa: SLF001
        return gloo(store, self._rank, self._world_size, options)

    def end(self, group: Any) -> None:
        """Shut its connections down: all that waits fails, on both sides."""
        del group
        for connection in _inet_sockets():
            with connection, contextlib.suppress(OSError):
                ends = {connection.getsockname()[:2], connection.getpeername()[:2]}
                if ends & self._listeners:
                    connection.shutdown(socket.SHUT_RDWR)


class NcclGroup:
    """NCCL, on one GPU of each rank.

    Args:
        rank: this rank.
        world_size: number of ranks.
        device: this worker's.
        connect_timeout_s: how long making the connections may take.

    Raises:
        ConfigError: the worker has no GPU, or torch no NCCL.
    """

    place = b""

    def __init__(
        self, *, rank: int, world_size: int, device: str, connect_timeout_s: float
    ) -> None:
        check_backend("nccl", device)
        self.device = torch.device(device)
        self._rank, self._world_size = rank, world_size
        self._timeout = timedelta(seconds=connect_timeout_s)

    def knows(self, places: Sequence[bytes]) -> None:
        """NCCL ends its connections itself."""

    def make(self, store: Store) -> Any:
        """Connect to all ranks."""
        # Else a thread of torch's ends the whole process when a neighbour is lost.
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
        os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = self._timeout  # noqa: SLF001
        with torch.cuda.device(self.device):
            group = nccl(store, self._rank, self._world_size, options)
            group.eager_connect_single_device(self.device)
        return group

    def end(self, group: Any) -> None:
        """What runs on the GPU ends, too."""
        if group is not None:
            group.abort()


def check_backend(transport: str, device: str) -> None:
    """See that a worker can take part in jobs with this transport.

    Args:
        transport: "ring", "gloo" or "nccl".
        device: "cpu" or "cuda:N".

    Raises:
        ConfigError: it cannot.
    """
    if transport == "nccl" and device == "cpu":
        raise ConfigError(
            "the job's gradients travel by NCCL, and this worker trains on a CPU",
            remedy='start its workers with --device cuda:N, or let [sync] transport be "ring"',
        )
    there = {"gloo": dist.is_gloo_available, "nccl": dist.is_nccl_available}
    if transport in there and not there[transport]():
        raise ConfigError(
            f"the job's gradients travel by {transport}, and this worker's torch was built"
            " without it",
            remedy='install a build that has it, or let [sync] transport be "ring"',
        )


def group_of(
    transport: str, *, rank: int, world_size: int, host: str, device: str, connect_timeout_s: float
) -> Group:
    """What makes a rank's part of a generation's group.

    Raises:
        ConfigError: this worker cannot take part in such a group.
    """
    check_backend(transport, device)
    if transport == "nccl":
        return NcclGroup(
            rank=rank, world_size=world_size, device=device, connect_timeout_s=connect_timeout_s
        )
    return GlooGroup(
        rank=rank, world_size=world_size, host=host, connect_timeout_s=connect_timeout_s
    )


class ProcessGroupCollective:
    """One generation's collective: large buckets by a process group, all else by its ring.

    Called from the training thread, `start` from any.  See `dtd.transport.api.Collective`.

    Args:
        ring: the generation's.
        group: makes this rank's part of the process group; called when the first step with buckets
            for it opens, and not at all where the world has one rank.
    """

    def __init__(self, ring: BreakableCollective, group: Callable[[], Group]) -> None:
        self._ring = ring
        self._new_group = group
        self._group: Group | None = None
        self._backend: Any = None
        self._changed = threading.Condition()
        self._failure = ""
        self._ended = False
        self._pending: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self._buckets: list[BucketMemory] = []
        self._views: dict[int, Tensor] = {}
        self._own: dict[int, Tensor] = {}
        self._on_ring: dict[int, int] = {}
        self._ready: set[int] = set()
        self._unissued: list[int] = []
        self._done: set[int] = set()
        self._stream: Any = None
        self._finisher = threading.Thread(
            target=self._finish_all, name="process-group", daemon=True
        )
        self._busy = BusyTime()
        self._exposed_s = 0.0
        self._sent_bytes = 0

    @property
    def rank(self) -> int:
        """This worker's position in the roster."""
        return self._ring.rank

    @property
    def world_size(self) -> int:
        """Length of the roster."""
        return self._ring.world_size

    @property
    def generation(self) -> int:
        """Number of the roster."""
        return self._ring.generation

    def check(self) -> None:
        """Raise if the generation is over; see `Collective.check`."""
        with self._leaving():
            self._ring.check()
            if self._failure:
                self._give_up()

    @contextlib.contextmanager
    def _leaving(self) -> Iterator[None]:
        """Whoever is told that the generation is over may write to its buckets again: we do not."""
        try:
            yield
        except RingBroken:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            raise

    # --- a step ------------------------------------------------------------------------------

    def open_step(self, step: int, buckets: Sequence[BucketMemory], may_add: int = 0) -> None:
        """Begin a step; see `ExtendableCollective.open_step`."""
        with self._changed:
            self._buckets, self._views, self._on_ring = [], {}, {}
            self._ready, self._done, self._unissued = set(), set(), []
        self._busy, self._exposed_s, self._sent_bytes = BusyTime(), 0.0, 0
        on_ring = self._lay_out(buckets)
        with self._leaving():
            self._ring.open_step(step, on_ring, may_add)
            self._form_if_needed()

    def add(self, buckets: Sequence[BucketMemory]) -> None:
        """Give the open step more buckets; see `ExtendableCollective.add`."""
        on_ring = self._lay_out(buckets)
        with self._leaving():
            self._ring.add(on_ring)
            self._form_if_needed()

    def _form_if_needed(self) -> None:
        if self._views and self._backend is None:
            self._form()

    def _lay_out(self, buckets: Sequence[BucketMemory]) -> list[BucketMemory]:
        """Number further buckets, and return those that take the ring.

        Types, operations and the world decide that; they are equal on all ranks.
        """
        on_ring = []
        with self._changed:
            for index, bucket in enumerate(buckets, start=len(self._buckets)):
                self._buckets.append(bucket)
                if self._is_for_group(bucket):
                    dtype = DTYPES[bucket.dtype]
                    self._views[index] = torch.frombuffer(bucket.view, dtype=dtype)
                    self._unissued.append(index)
                else:
                    self._on_ring[index] = len(self._on_ring)
                    on_ring.append(bucket)
        return on_ring

    def _is_for_group(self, bucket: BucketMemory) -> bool:
        travels = bucket.dtype in DTYPES and bucket.operation in _REDUCTIONS
        return self.world_size > 1 and travels and bucket.elements > 0

    def start(self, bucket: int) -> None:
        """Hand over a full bucket; those of the group are issued in index order on all ranks."""
        self.check()
        now = time.monotonic()
        with self._changed:
            self._busy.begin(now)
            if bucket not in self._on_ring:
                self._ready.add(bucket)
                while self._unissued and self._unissued[0] in self._ready:
                    self._issue(self._unissued.pop(0))
                return
        with self._leaving():
            self._ring.start(self._on_ring[bucket])

    def wait(self, bucket: int) -> None:
        """Block until the bucket holds the sum; see `Collective.wait`."""
        begun_s = time.monotonic()
        with self._leaving():
            if bucket in self._on_ring:
                self._wait_for_ring(bucket)
            else:
                self._wait_for_group(bucket)
        self._exposed_s += time.monotonic() - begun_s

    def _wait_for_ring(self, bucket: int) -> None:
        self._ring.wait(self._on_ring[bucket])
        with self._changed:
            if bucket not in self._done:
                self._done.add(bucket)
                self._busy.end(time.monotonic())

    def _wait_for_group(self, bucket: int) -> None:
        with self._ring.waiting(), self._changed:
            self._changed.wait_for(
                lambda: bucket in self._done or bool(self._failure) or self._ended
            )
            here = bucket in self._done
        if not here:
            self._give_up()

    def gather(self, word: bytes) -> list[bytes]:
        """Exchange small words by the ring; see `Collective.gather`."""
        begun_s = time.monotonic()
        with self._changed:
            self._busy.begin(begun_s)
        with self._leaving():
            words = self._ring.gather(word)
        ended_s = time.monotonic()
        with self._changed:
            self._busy.end(ended_s)
        self._exposed_s += ended_s - begun_s
        return words

    def close_step(self) -> CommTiming:
        """End the open step.

        What a group sends is not known; a ring's all-reduce of the same buckets is counted.
        """
        timing = self._ring.close_step()
        return CommTiming(
            busy_s=self._busy.busy_s,
            exposed_s=self._exposed_s,
            sent_bytes=timing.sent_bytes + self._sent_bytes,
        )

    # --- the group ---------------------------------------------------------------------------

    def _form(self) -> None:
        """Make the generation's group, together with all other ranks.

        Raises:
            RingBroken: the ring broke meanwhile, or some rank could not make its part.
            ConfigError: this worker cannot take part in any.
        """
        ring, group = self._ring, self._new_group()

        def gather(payload: bytes) -> list[bytes]:
            return gather_payloads(ring.exchange, payload)

        try:
            group.knows(gather(group.place))
            rendezvous: Rendezvous[Any] = Rendezvous(group.make, group.end)
            with ring.waiting():
                self._backend = rendezvous.run(gather, ring.check, ring.on_broken)
        except (ProcessGroupFailed, ProtocolError) as error:
            reason = f"the process group could not be made: {error}"
            ring.give_up(reason)
            raise RingBroken(reason) from error
        self._group = group
        if group.device.type == "cuda":
            self._stream = _CUDA.Stream(group.device)
        self._finisher.start()
        ring.on_broken(self._on_broken)
        log.info("process_group_formed", generation=ring.generation, world_size=ring.world_size)

    def _work_area(self) -> contextlib.AbstractContextManager[Any]:
        """Where copies and operations are queued: a stream of our own on a GPU."""
        if self._stream is None:
            return contextlib.nullcontext()
        return torch.cuda.stream(self._stream)

    def _issue(self, bucket: int) -> None:
        """Queue a bucket's operation; called with the lock held, in index order."""
        options = dist.AllreduceOptions()
        options.reduceOp = _REDUCTIONS[self._buckets[bucket].operation]
        options.timeout = OPERATION_TIMEOUT
        own, view = self._own_memory(bucket), self._views[bucket]
        size = self.world_size
        self._sent_bytes += 2 * (size - 1) * view.nbytes // size
        try:
            with self._work_area():
                own.copy_(view, non_blocking=True)
                work = self._backend.allreduce([own], options)
        except RuntimeError as error:  # the group has been ended, or cannot do this at all
            self._failure = str(error) or type(error).__name__
            self._changed.notify_all()
        else:
            self._pending.put((bucket, work))

    def _own_memory(self, bucket: int) -> Tensor:
        """The group's memory for a bucket; every step uses the same."""
        view, own = self._views[bucket], self._own.get(bucket)
        if own is None or own.numel() != view.numel() or own.dtype != view.dtype:
            assert self._group is not None
            own = self._own[bucket] = torch.empty_like(view, device=self._group.device)
        return own

    def _finish_all(self) -> None:
        """In a thread of its own: wait for operations, and bring sums to their buckets.

        The last one to know the group, so that nobody else waits when it is taken down.
        """
        failed = False
        while (pending := self._pending.get()) is not None:
            bucket, work = pending
            try:
                self._finish(bucket, work, failed=failed)
            except RuntimeError as error:
                failed = True
                with self._changed:
                    self._failure = self._failure or str(error) or type(error).__name__
                    self._changed.notify_all()
            del pending, work
        self._backend = None

    def _finish(self, bucket: int, work: Any, *, failed: bool) -> None:
        with self._work_area():
            work.wait()
            if self._stream is not None:
                self._stream.synchronize()
        with self._changed:
            if failed or self._ended:  # the bucket may belong to the next generation by now
                return
            self._views[bucket].copy_(self._own[bucket])
            self._done.add(bucket)
            self._busy.end(time.monotonic())
            self._changed.notify_all()

    # --- the end -----------------------------------------------------------------------------

    def _on_broken(self) -> None:
        """On the event loop: wake whoever waits, and leave the rest to a thread."""
        threading.Thread(target=self._end, name="process-group-end", daemon=True).start()

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        assert self._group is not None
        self._group.end(self._backend)
        self._pending.put(None)

    def _give_up(self) -> None:
        """The group has failed: the ring says whom it lost, or ends now.

        Raises:
            RingBroken: always.
        """
        with self._ring.waiting(), self._changed:
            self._changed.wait_for(lambda: self._ended, RING_GRACE_S)
        self._ring.check()
        reason = f"the process group has failed: {self._failure}"
        self._ring.give_up(reason)
        raise RingBroken(reason)


def _inet_sockets() -> Iterable[socket.socket]:
    """Duplicates of all internet sockets of this process, each to be closed."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a few hundred names, often
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):  # noqa: PTH115
                continue
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed meanwhile
            continue
        if found.family in (socket.AF_INET, socket.AF_INET6):
            yield found
        else:
            found.close()


def _listening(host: str) -> Iterable[tuple[str, int]]:
    """(address, port) of the sockets of this process that listen at an address or a name."""
    addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    for one in _inet_sockets():
        with one:
            accepts = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            address, port = one.getsockname()[:2]
            if accepts and address in addresses:
                yield address, port
