"""One rank of a benchmark: `python -m scripts.benchrun.rank KIND`, started by `ranks`.

The first line on stdin describes the rank, every further one is a call; each gets one line of
answer.  It ends when stdin does.  What the libraries print goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

KINDS: Final = {
    "dtd": "scripts.benchrun.ring_side:RingSide",
    "gloo": "scripts.benchrun.gloo_side:GlooSide",
    "probe": "scripts.benchrun.probe_side:ProbeSide",
    "torch": "scripts.benchrun.torch_side:TorchSide",
}

Call = Callable[..., Any]


class AllReduceSide(Protocol):
    """One rank of something that can sum a bucket over all ranks."""

    def listen(self) -> list[Any]:
        """Where the others reach it: [host, port]."""
        ...

    def join(self, addresses: list[list[Any]], secret: str) -> None:
        """Connect to the others."""
        ...

    def prepare(self, size_bytes: int, dtype: str) -> None:
        """Have a bucket of this size; the one before is given up."""
        ...

    def verify(self) -> None:
        """Sum once, and see that the sum is right; leaves a bucket of zeros."""
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
    """What such a rank can be asked for."""
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
    """Make the side and say what it can be asked for."""
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
        except Exception as error:  # noqa: BLE001 - whatever it was, it is told
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        os.write(out, json.dumps(answer).encode() + b"\n")
    sys.stdout.flush()
    os._exit(0)  # threads of the libraries may wait for something that never comes


if __name__ == "__main__":
    sys.exit(main())
