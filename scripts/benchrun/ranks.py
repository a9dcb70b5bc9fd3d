"""The processes that are measured: started, asked, ended.

A rank is `python -m scripts.benchrun.ranks KIND`.  It stays for the whole benchmark, so that
nothing is measured cold.  The first line on its stdin describes the rank, every further one is a
call; each gets one line of answer, as JSON.  It ends when stdin does.  What the libraries print
goes to stderr.  All ranks of a world are asked at once.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, Self

from dtd.errors import DtdError
from scripts.benchrun.daemons import Place
from scripts.cluster import processes
from scripts.cluster.cluster import REPOSITORY
from scripts.cluster.processes import proc_bytes

if TYPE_CHECKING:
    import torch

# --- the parent: all ranks of a side --------------------------------------------------------------


ANSWER_S: Final = 900.0
_SOONEST_S: Final = 0.001
_END_S: Final = 5.0
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_TAIL_CHARACTERS: Final = 2000


class World:
    """The ranks of one side."""

    def __init__(
        self, kind: str, size: int, place: Place, setup: Mapping[str, Any] | None = None
    ) -> None:
        self.size = size
        self._ranks: list[_Rank] = []
        self._stack = contextlib.ExitStack()
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dtd-rank-")))
        try:
            for rank in range(size):
                command = [sys.executable, "-m", "scripts.benchrun.ranks", kind]
                log = self._stack.enter_context((directory / f"{rank}.log").open("w+b"))
                self._ranks.append(_Rank(f"{kind} {rank}", place.wrapped(rank, command), log))
                self._ranks[rank].tell(
                    {
                        "rank": rank,
                        "world": size,
                        "host": place.host(rank),
                        "interface": place.interface,
                        "directory": str(directory),
                        **(setup or {}),
                    }
                )
            self._answers()
        except BaseException:
            self.close()
            raise

    def ask(self, call: str, **arguments: Any) -> list[Any]:
        """Ask all ranks for the same; their answers in rank order.

        Raises:
            DtdError: a rank failed, or did not answer in time.
        """
        for rank in self._ranks:
            rank.tell({"call": call, "arguments": arguments})
        return self._answers()

    def peak_bytes(self) -> list[int]:
        """The most memory that each rank has had so far."""
        return [proc_bytes(rank.process.pid, "VmHWM") for rank in self._ranks]

    def close(self) -> None:
        """End all ranks; none is left when this returns."""
        for rank in self._ranks:
            rank.end()
        self._stack.close()

    def _answers(self) -> list[Any]:
        deadline_s = time.monotonic() + ANSWER_S
        return [rank.answer(deadline_s) for rank in self._ranks]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class _Rank:
    """One process."""

    def __init__(self, name: str, command: Sequence[str], log: IO[bytes]) -> None:
        self.name = name
        self._log = log
        self._rest = b""
        self._socket, talk = socket.socketpair()
        environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": str(REPOSITORY)}
        with talk:
            self.process = processes.launch(command, log, environment, talk)

    def tell(self, request: Mapping[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise self._failed("has ended") from None

    def answer(self, deadline_s: float) -> Any:
        while b"\n" not in self._rest:
            self._socket.settimeout(max(_SOONEST_S, deadline_s - time.monotonic()))
            try:
                piece = self._socket.recv(1 << 16)
            except TimeoutError:
                raise self._failed(f"gave no answer within {ANSWER_S:g} s") from None
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise self._failed("has ended")
            self._rest += piece
        line, self._rest = self._rest.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise self._failed(f"failed: {answer['error']}")
        return answer["result"]

    def end(self) -> None:
        """Ask it to end, then make it."""
        self._socket.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _failed(self, what: str) -> DtdError:
        self._log.seek(0)
        said = self._log.read().decode(errors="replace")[-_TAIL_CHARACTERS:].strip()
        return DtdError(f"rank {self.name} {what}" + (f"; it said\n{said}" if said else ""))


# --- a bucket, and how to see that it was summed --------------------------------------------------


def layout(size_bytes: int, dtype: str) -> tuple[int, torch.dtype]:
    """(elements, type) of a bucket of this size; `dtype` is the name of a torch type."""
    import torch  # ranks that only move bytes do without

    kind: torch.dtype = getattr(torch, dtype)
    return size_bytes // kind.itemsize, kind


class Bucket:
    """One dimension of zeros.

    Zeros stay zeros however often they are summed, so nothing overflows while time is taken.
    """

    def __init__(self, flat: torch.Tensor) -> None:
        self.flat = flat
        self.flat.fill_(0)  # now the pages are there

    def verify(self, rank: int, world: int, all_reduce: Callable[[], None]) -> None:
        """Sum rank + 1 over all ranks, which is exact in every type.

        Raises:
            DtdError: the sum is wrong.
        """
        self.flat.fill_(rank + 1)
        all_reduce()
        expected = world * (world + 1) // 2
        if not bool((self.flat == expected).all()):
            raise DtdError(f"the sum over {world} ranks is not {expected} everywhere")
        self.flat.fill_(0)


# --- the child: one rank --------------------------------------------------------------------------


KINDS: Final = {
    "dtd": "scripts.benchrun.ring_side:RingSide",
    "gloo": "scripts.benchrun.torch_side:GlooSide",
    "probe": "scripts.benchrun.probe_side:ProbeSide",
    "torch": "scripts.benchrun.torch_side:TorchSide",
}

Call = Callable[..., Any]


class AllReduceSide(Protocol):
    """One rank of something that can sum a bucket over all ranks."""

    def listen(self) -> list[Any]:
        """Return its address: [host, port]."""
        ...

    def join(self, addresses: list[list[Any]], secret: str) -> None:
        """Connect to the others."""
        ...

    def prepare(self, size_bytes: int, dtype: str) -> None:
        """Have a bucket of this size; the one before is given up."""
        ...

    def verify(self) -> None:
        """Sum once, and check the sum; leaves a bucket of zeros."""
        ...

    def barrier(self) -> None:
        """Return when all ranks have called this."""
        ...

    def all_reduce(self) -> None:
        """Sum the bucket in place."""
        ...


def measure(side: AllReduceSide, iterations: int) -> dict[str, float]:
    """Seconds, and processor seconds of all threads of this process."""
    side.barrier()
    cpu_s, begun_s = _cpu_s(), time.perf_counter()
    for _ in range(iterations):
        side.all_reduce()
    return {"wall_s": time.perf_counter() - begun_s, "cpu_s": _cpu_s() - cpu_s}


def all_reduce_calls(side: AllReduceSide) -> dict[str, Call]:
    """Return the functions that a rank can be asked for."""
    return {
        "listen": side.listen,
        "join": side.join,
        "prepare": side.prepare,
        "verify": side.verify,
        "measure": lambda iterations: measure(side, iterations),
    }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def calls_of(kind: str, setup: Mapping[str, Any]) -> dict[str, Call]:
    """Make the side and return its functions."""
    module, _, name = KINDS[kind].partition(":")
    side = getattr(importlib.import_module(module), name)(setup)
    return side.calls() if hasattr(side, "calls") else all_reduce_calls(side)


def main() -> int:
    """Serve until stdin ends."""
    out = os.dup(1)
    os.dup2(2, 1)
    calls: dict[str, Call] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if not calls:
                calls = calls_of(sys.argv[1], request)
                result = None
            else:
                result = calls[request["call"]](**request["arguments"])
            answer = {"result": result}
        except Exception as error:  # noqa: BLE001 - the answer has it
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        os.write(out, json.dumps(answer).encode() + b"\n")
    sys.stdout.flush()
    os._exit(0)  # threads of the libraries may wait for something that never comes


if __name__ == "__main__":
    sys.exit(main())
