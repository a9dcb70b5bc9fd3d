"""What the data plane's security costs: keyed checksums, keyed MACs and TLS against one another.

    python -m scripts.security_cost --rounds 20

Two processes on this machine hold one ring of each kind at the same time and use them in turn, so
all kinds see the same noise.  *xxh3* is what loopback gets, *gcm* what every other address gets,
*tls* what a job with `[sync] encryption = "tls"` gets.  Measured are the bus bandwidth of an
all-reduce and the time of a step whose gradients become ready, bucket by bucket, while it computes.
Tables are Markdown on stdout: medians, the middle half, and medians of the ratios within a round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final
from unittest import mock

import numpy as np
import uvloop

from dtd.address import Address
from dtd.errors import CheckpointError
from dtd.net.data_server import DataServer
from dtd.net.resource import Resource
from dtd.security import identity
from dtd.security.authority import Authority
from dtd.security.credential import Credential
from dtd.transport.api import BucketMemory
from dtd.transport.bridge import Bridge, RingCollective
from dtd.wire import messages as m
from dtd.wire.data_keys import KEY_BYTES

KINDS: Final = ("xxh3", "gcm", "tls")
SIZES_BYTES: Final = (64 * 1024, 16 * 1024 * 1024)
REPEATS: Final = {64 * 1024: 40, 16 * 1024 * 1024: 4}
BUCKET_BYTES: Final = 4 * 1024 * 1024
CHUNK_BYTES: Final = 1024 * 1024
STEP_BYTES: Final = 16 * 1024 * 1024
COMPUTE_S: Final = 0.1
STEPS: Final = 3
BEAT_S: Final = 0.25
SILENCE_S: Final = 60.0
WORLD: Final = 2


# --- one rank ------------------------------------------------------------------------------------


class Rank:
    """One process: a ring of each kind, and what is measured on it."""

    def __init__(self, rank: int, credential: Path) -> None:
        loaded = Credential.load(credential)
        self._rank = rank
        self._contexts = {"tls": loaded.client_context()}
        self._serves = loaded.server_context()
        self._loop = uvloop.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._servers = {kind: DataServer(f"rank-{rank}", _no_checkpoint) for kind in KINDS}
        self._rings: dict[str, RingCollective] = {}
        self._steps = dict.fromkeys(KINDS, 0)

    def listen(self) -> dict[str, int]:
        """The port of each kind."""
        return {kind: self._on_loop(self._listen(kind)).port for kind in KINDS}

    async def _listen(self, kind: str) -> Address:
        address = Address("127.0.0.1", 0)
        return await self._servers[kind].listen(address, context=self._serves)

    def connect(self, ports: Sequence[dict[str, int]]) -> None:
        """Form all rings."""
        for kind in KINDS:
            # As if the other rank were on another host, where this kind is meant to be measured.
            with mock.patch("dtd.net.remote.is_loopback", lambda _host, kind=kind: kind != "gcm"):
                ring = self._on_loop(self._ring(kind, [port[kind] for port in ports]))
                ring.wait_up()
            self._rings[kind] = ring

    async def _ring(self, kind: str, ports: Sequence[int]) -> RingCollective:
        roster = tuple(
            m.Member(name=f"rank-{rank}", incarnation=1, host="127.0.0.1", port=port, holds=True)
            for rank, port in enumerate(ports)
        )
        assign = m.Assign(
            job="cost",
            generation=1,
            roster_id=1,
            rank=self._rank,
            roster=roster,
            held_generation=0,
            held_step=0,
            secret=bytes(KEY_BYTES),
        )
        ring = RingCollective(
            Bridge(self._loop),
            assign,
            self._servers[kind],
            chunk_bytes=CHUNK_BYTES,
            beat_interval_s=BEAT_S,
            silence_s=SILENCE_S,
            agreed=lambda: None,
            context=self._contexts.get(kind),
        )
        ring.connect()
        return ring

    def measure(self, kind: str, size_bytes: int, compute_s: float, repeats: int) -> float:
        """Mean seconds of a step that reduces so many bytes and computes for so long."""
        ring = self._rings[kind]
        buckets = [
            _memory(np.ones(min(BUCKET_BYTES, size_bytes - start) // 4, np.float32))
            for start in range(0, size_bytes, BUCKET_BYTES)
        ]
        self._step(ring, kind, [], 0.0)  # both ranks begin together
        begun_s = time.perf_counter()
        for _ in range(repeats):
            self._step(ring, kind, buckets, compute_s)
        return (time.perf_counter() - begun_s) / repeats

    def _step(
        self, ring: RingCollective, kind: str, buckets: Sequence[BucketMemory], compute_s: float
    ) -> None:
        ring.open_step(self._steps[kind], buckets)
        self._steps[kind] += 1
        for bucket in range(len(buckets)):
            _compute(compute_s / len(buckets))
            ring.start(bucket)
        for bucket in range(len(buckets)):
            ring.wait(bucket)
        ring.gather(b"")
        ring.close_step()

    def _on_loop(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()


def _compute(seconds: float) -> None:
    """Work of this thread's own: a fixed share of the processor's time, whatever else runs."""
    left = np.ones((64, 64), np.float32)
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        left @ left


def _memory(array: np.ndarray[Any, np.dtype[np.float32]]) -> BucketMemory:
    def add(start: int, stop: int, received: memoryview) -> None:
        array[start:stop] += np.frombuffer(received, np.float32)

    return BucketMemory(view=memoryview(array.view(np.uint8).data), item_bytes=4, add=add)


def _no_checkpoint(name: str) -> Resource:
    raise CheckpointError(f"{name} is not here")


def _serve(rank: int, credential: Path) -> None:
    """Do what stdin says, a line of JSON each, and answer on stdout."""
    own = Rank(rank, credential)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(own, name)(*arguments)), flush=True)


# --- both ----------------------------------------------------------------------------------------


class Pair:
    """The two processes."""

    def __init__(self, directory: Path) -> None:
        self._processes = [self._start(rank, _credential(directory)) for rank in range(WORLD)]
        ports = self.both("listen")
        self.both("connect", ports)

    @staticmethod
    def _start(rank: int, credential: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "scripts.security_cost", "--rank", str(rank)]
        return subprocess.Popen(
            [*command, "--credential", str(credential)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def both(self, *request: object) -> list[Any]:
        """Have both do the same; their answers."""
        for process in self._processes:
            _pipe(process.stdin).write(json.dumps(request) + "\n")
            _pipe(process.stdin).flush()
        return [json.loads(_pipe(process.stdout).readline()) for process in self._processes]

    def close(self) -> None:
        """End both."""
        for process in self._processes:
            process.kill()
            process.communicate()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _credential(directory: Path) -> Path:
    """A worker's credential of a cluster that lives as long as the directory."""
    path = directory / "worker.credential"
    if not path.exists():
        authority = Authority.create(directory / "pki")
        here = (Address("127.0.0.1", 1),)
        authority.enrol(path, identity.WORKER, "rank", coordinators=here)
    return path


def _rounds(pair: Pair, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each case and kind, one of each a round, in an order that changes."""
    chance = random.Random(1)  # noqa: S311 - an order, no secret
    cases = {f"all-reduce of {size >> 10} KiB": (size, 0.0, REPEATS[size]) for size in SIZES_BYTES}
    cases["step"] = (STEP_BYTES, COMPUTE_S, STEPS)
    seconds: dict[str, dict[str, list[float]]] = {
        case: {kind: [] for kind in KINDS} for case in cases
    }
    for _ in range(rounds + 1):  # the first warms everything up
        for case, what in cases.items():
            for kind in chance.sample(KINDS, len(KINDS)):
                seconds[case][kind].append(max(pair.both("measure", kind, *what)))
    return {
        case: {kind: values[1:] for kind, values in kinds.items()}
        for case, kinds in seconds.items()
    }


def _table(seconds: dict[str, dict[str, list[float]]]) -> list[str]:
    rows = [
        "| case | kind | median | middle half | time against xxh3 |",
        "|---|---|---|---|---|",
    ]
    for case, kinds in seconds.items():
        for kind, values in kinds.items():
            low, middle, high = (_shown(case, value) for value in statistics.quantiles(values, n=4))
            ratios = [value / base for value, base in zip(values, kinds["xxh3"], strict=True)]
            first, ratio, last = statistics.quantiles(ratios, n=4)
            spread = f"{ratio:.3f} ({first:.3f} to {last:.3f})"
            rows.append(f"| {case} | {kind} | {middle} | {low} to {high} | {spread} |")
    return rows


def _shown(case: str, seconds: float) -> str:
    """Bus bandwidth of an all-reduce, time of a step."""
    if case == "step":
        return f"{seconds * 1e3:.1f} ms"
    size_bytes = int(case.split()[2]) << 10
    return f"{2 * (WORLD - 1) / WORLD * size_bytes / seconds / 1e9:.3f} GB/s"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the data plane's security costs.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--credential", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        _serve(options.rank, options.credential)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        pair = Pair(Path(directory))
        try:
            seconds = _rounds(pair, options.rounds)
        finally:
            pair.close()
    print("\n".join(_table(seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
