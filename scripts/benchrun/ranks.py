"""The processes that are measured: started, asked, ended.

A rank is `python -m scripts.benchrun.rank KIND`.  It stays for the whole benchmark, so that nothing
is measured cold; requests and answers are lines of JSON.  All ranks of a world are asked at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from dtd.errors import DtdError
from scripts import die_with_parent
from scripts.benchrun.places import Place
from scripts.chaosrun.cluster import REPOSITORY

ANSWER_S: Final = 900.0
_END_S: Final = 5.0
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_TAIL_CHARACTERS: Final = 2000


class World:
    """The ranks of one side.

    Args:
        kind: which program (`scripts.benchrun.rank`).
        size: how many.
        place: where they run.
        setup: what they are told beside rank, world and host.
    """

    def __init__(
        self, kind: str, size: int, place: Place, setup: Mapping[str, Any] | None = None
    ) -> None:
        self.size = size
        self._ranks: list[_Rank] = []
        self._stack = contextlib.ExitStack()
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dtd-rank-")))
        try:
            for rank in range(size):
                command = [sys.executable, "-m", "scripts.benchrun.rank", kind]
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
        return [peak_bytes(rank.process.pid) for rank in self._ranks]

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def peak_bytes(pid: int) -> int:
    """The largest resident size that a process has had since its program was started."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


class _Rank:
    """One process."""

    def __init__(self, name: str, command: Sequence[str], log: IO[bytes]) -> None:
        self.name = name
        self._log = log
        self._rest = b""
        watched = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
        self.process = subprocess.Popen(
            [*watched, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=REPOSITORY,
            env={**os.environ, **_ONE_THREAD, "PYTHONPATH": str(REPOSITORY)},
        )

    def tell(self, request: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("has ended") from None

    def answer(self, deadline_s: float) -> Any:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    raise self._failed(f"gave no answer within {ANSWER_S:g} s")
                piece = os.read(self.process.stdout.fileno(), 1 << 16)
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
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def _failed(self, what: str) -> DtdError:
        self._log.seek(0)
        said = self._log.read().decode(errors="replace")[-_TAIL_CHARACTERS:].strip()
        return DtdError(f"rank {self.name} {what}" + (f"; it said\n{said}" if said else ""))
