"""A coordinator that times its callbacks, for `scripts.viewers_cost` alone.

It runs on asyncio's own event loop, whose callbacks can be seen, and takes each one's processor
time, which is what a busy machine leaves comparable.  SIGUSR1 makes it write them to its state
directory.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

import uvloop

from dtd.coordinator.main import main

CALLBACKS: Final = "callbacks.json"
"""Processor seconds of each callback since the last time, by its owner."""


def timed(file: Path) -> None:
    """Time all callbacks of this process."""
    seen: dict[str, list[float]] = defaultdict(list)
    run = asyncio.Handle._run  # noqa: SLF001 - there is no other place to stand

    def run_timed(handle: asyncio.Handle) -> None:
        begun_s = time.thread_time()
        run(handle)
        seen[_name(handle)].append(time.thread_time() - begun_s)

    def tell(_number: int, _frame: object) -> None:
        made = file.with_suffix(".new")
        made.write_text(json.dumps(seen))
        made.rename(file)
        seen.clear()

    setattr(asyncio.Handle, "_run", run_timed)  # noqa: B010 - typed otherwise
    setattr(uvloop, "run", asyncio.run)  # noqa: B010
    signal.signal(signal.SIGUSR1, tell)


def _name(handle: asyncio.Handle) -> str:
    called = getattr(handle, "_callback", None)
    owner = getattr(called, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(getattr(owner.get_coro(), "__qualname__", owner))
    return str(getattr(called, "__qualname__", type(called).__name__))


if __name__ == "__main__":
    timed(Path(sys.argv[sys.argv.index("--state-dir") + 1]) / CALLBACKS)
    sys.exit(main())
