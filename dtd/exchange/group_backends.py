"""A rank's part of a process group, made, found and ended with Gloo and with NCCL.

These ways to end a blocked Gloo all-reduce were tried with torch 2.15:

- `abort()` and `shutdown()` return immediately and end nothing;
- a timeout is set when an operation begins, but a rank may compute for any length of time;
- dropping the group waits for its operations;
- closing a connection ends every operation on both sides immediately.

So the connections are shut down (shutdown(2)), which also works on sockets that another thread is
reading.  They are identified by their addresses: each Gloo device listens on its own port, the
ports are exchanged in the rendezvous, and every connection of the group ends at one of them.
NCCL's `abort()` does end running operations.

Occasionally a Gloo operation keeps waiting although all its connections are closed; under load and
with large buckets this happened in one of ten ended groups.  The training thread does not wait for
it.  Such an operation keeps its threads, its device and the group's copy of its bucket until the
process is replaced at the end of the job.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from dtd.errors import ConfigError


class Group(Protocol):
    """A process group of one backend, and the way to end it."""

    device: torch.device

    def place(self) -> bytes:
        """Return the addresses at which this rank listens, for `make` on all ranks."""
        ...

    def make(self, places: Sequence[bytes]) -> Any:
        """Connect to all ranks, which have these places; returns the backend's group.  Blocks."""
        ...

    def end(self, group: Any) -> None:
        """End all operations of a group, including blocked ones."""
        ...


class Rendezvous:
    """The key-value store through which the ranks of a group find each other; rank 0 serves it.

    Attributes:
        place: of the store, on rank 0.
    """

    def __init__(self, *, rank: int, world_size: int, host: str, timeout_s: float) -> None:
        self.rank, self.world_size, self.host = rank, world_size, host
        self.timeout = timedelta(seconds=timeout_s)
        self._listener: socket.socket | None = None
        self.place = b""
        if rank > 0:
            return
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
            self._listener = socket.socket(family, kind)
            self._listener.bind(address)
        except OSError as error:
            raise ConfigError(
                f"a process group cannot listen at this worker's data address {host}: {error}",
                remedy=_REACHABLE,
            ) from error
        self._listener.listen()
        bound_host, port = self._listener.getsockname()[:2]
        self.place = f"{bound_host} {port}".encode()

    def store(self, place: bytes) -> Store:
        """Open the store at rank 0's place."""
        host, _, port = place.decode().rpartition(" ")
        listener = None if self._listener is None else self._listener.detach()
        return TCPStore(
            host,
            int(port),
            self.world_size,
            is_master=self.rank == 0,
            timeout=self.timeout,
            wait_for_workers=False,
            master_listen_fd=listener,
        )


_REACHABLE = (
    'let [sync] transport be "ring", or start the worker with a --data address that one of this'
    " host's interfaces has"
)


class GlooGroup:
    """Gloo, on the CPU."""

    device = torch.device("cpu")

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous, host = rendezvous, rendezvous.host
        self._listeners: set[tuple[str, int]] = set()
        before = set(_listening(host))
        try:
            self._device = dist.ProcessGroupGloo.create_device(hostname=host)
        except RuntimeError as error:
            raise ConfigError(
                f"Gloo cannot listen at this worker's data address {host}: {error}",
                remedy=_REACHABLE,
            ) from error
        own = sorted(f"{at} {port}".encode() for at, port in set(_listening(host)) - before)
        self._place = b"\n".join([self._rendezvous.place, *own])

    def place(self) -> bytes:
        """Return where the store is, in the first line, and where the group listens."""
        return self._place

    def make(self, places: Sequence[bytes]) -> Any:
        for place in places:
            for line in place.decode().splitlines()[1:]:
                host, _, port = line.rpartition(" ")
                self._listeners.add((host, int(port)))
        store = self._rendezvous.store(places[0].splitlines()[0])
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()  # noqa: SLF001 - it has no other name
        options._timeout = self._rendezvous.timeout  # noqa: SLF001
        options._devices = [self._device]  # noqa: SLF001
        return gloo(store, self._rendezvous.rank, self._rendezvous.world_size, options)

    def end(self, group: Any) -> None:
        """Shut down the connections: blocked operations fail on both sides."""
        del group
        for connection in _inet_sockets():
            with connection, contextlib.suppress(OSError):
                ends = {connection.getsockname()[:2], connection.getpeername()[:2]}
                if ends & self._listeners:
                    connection.shutdown(socket.SHUT_RDWR)


class NcclGroup:
    """NCCL, on one GPU of each rank."""

    def __init__(self, rendezvous: Rendezvous, device: str) -> None:
        self.device = torch.device(device)
        self._rendezvous = rendezvous

    def place(self) -> bytes:
        """Return where the store is; NCCL finds its own addresses."""
        return self._rendezvous.place

    def make(self, places: Sequence[bytes]) -> Any:
        store = self._rendezvous.store(places[0])
        # Otherwise a thread of torch ends the whole process when a neighbour is lost.
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
        os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = self._rendezvous.timeout  # noqa: SLF001
        with torch.cuda.device(self.device):
            group = nccl(store, self._rendezvous.rank, self._rendezvous.world_size, options)
            group.eager_connect_single_device(self.device)
        return group

    def end(self, group: Any) -> None:
        if group is not None:
            group.abort()


def check_backend(transport: str, device: str) -> None:
    """Check that a worker can take part in jobs with this transport."""
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
    """Return the object that creates a rank's part of a generation's group.

    Raises:
        ConfigError: this worker cannot take part in such a group.
    """
    check_backend(transport, device)
    rendezvous = Rendezvous(
        rank=rank, world_size=world_size, host=host, timeout_s=connect_timeout_s
    )
    return NcclGroup(rendezvous, device) if transport == "nccl" else GlooGroup(rendezvous)


def _inet_sockets() -> Iterable[socket.socket]:
    """Yield duplicates of all internet sockets of this process; the caller closes them."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a few hundred names, often
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):  # noqa: PTH115
                continue
            duplicate = os.dup(int(name))
        except OSError:  # closed meanwhile
            continue
        try:
            found = socket.socket(fileno=duplicate)
        except OSError:  # the number has been reused for something else
            os.close(duplicate)
            continue
        if found.family in (socket.AF_INET, socket.AF_INET6):
            yield found
        else:
            found.close()


def _listening(host: str) -> Iterable[tuple[str, int]]:
    """Yield (address, port) of this process's listening sockets at an address or a name."""
    addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    for one in _inet_sockets():
        with one:
            accepts = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            address, port = one.getsockname()[:2]
            if accepts and address in addresses:
                yield address, port
