"""Cost of the data plane's security: keyed checksums, keyed MACs and TLS against one another.

    python -m scripts.security_cost --rounds 20

A ring of each kind stands at the same time, with ranks of its own (`scripts.benchrun.ranks`), and
they are used in turn, so all kinds see the same noise.  *xxh3* is what loopback gets, *gcm* what
every other address gets, *tls* what a job with `[sync] encryption = "tls"` gets.  Measured are the
bus bandwidth of an all-reduce and the time of a step whose gradients become ready, bucket by
bucket, while it computes.  Tables are Markdown on stdout: medians, the middle half, and medians of
the ratios within a round.  Needs root, for addresses that are not loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dtd.address import Address
from dtd.errors import DtdError, UsageError
from dtd.security import identity
from dtd.security.authority import Authority
from scripts import markdown
from scripts.benchrun.allreduce import bus_factor, join
from scripts.benchrun.places import OneHost, OtherHosts, own_network
from scripts.benchrun.ranks import World

KINDS: Final = {"xxh3": OneHost, "gcm": OtherHosts, "tls": OneHost}
SIZES_BYTES: Final = (64 * 1024, 16 * 1024 * 1024)
REPEATS: Final = {64 * 1024: 40, 16 * 1024 * 1024: 4}
BUCKET_BYTES: Final = 4 * 1024 * 1024
STEP_BYTES: Final = 16 * 1024 * 1024
COMPUTE_S: Final = 0.1
STEPS: Final = 3
WORLD: Final = 2

Seconds = dict[str, dict[str, list[float]]]
"""Times of each case and kind, one a round."""


def _credential(directory: Path) -> Path:
    """A worker's credential of a cluster that lives as long as the directory."""
    path = directory / "worker.credential"
    authority = Authority.create(directory / "pki")
    authority.enrol(path, identity.WORKER, "rank", coordinators=(Address("127.0.0.1", 1),))
    return path


def _measured(worlds: Mapping[str, World], rounds: int) -> Seconds:
    """Measure all kinds in an order that changes."""
    chance = random.Random(1)  # noqa: S311 - an order, no secret
    cases = {f"all-reduce of {size >> 10} KiB": (size, 0.0, REPEATS[size]) for size in SIZES_BYTES}
    cases["step"] = (STEP_BYTES, COMPUTE_S, STEPS)
    seconds: Seconds = {case: {kind: [] for kind in KINDS} for case in cases}
    for turn in range(rounds + 1):  # the first warms everything up
        for case, (size_bytes, compute_s, steps) in cases.items():
            for kind in chance.sample([*KINDS], len(KINDS)):
                took_s = worlds[kind].ask(
                    "steps",
                    size_bytes=size_bytes,
                    bucket_bytes=BUCKET_BYTES,
                    compute_s=compute_s,
                    count=steps,
                )
                if turn:
                    seconds[case][kind].append(max(took_s))
    return seconds


def _table(seconds: Seconds) -> str:
    rows = []
    for case, kinds in seconds.items():
        for kind, values in kinds.items():
            low, middle, high = (_shown(case, value) for value in statistics.quantiles(values, n=4))
            ratios = [value / base for value, base in zip(values, kinds["xxh3"], strict=True)]
            first, ratio, last = statistics.quantiles(ratios, n=4)
            spread = f"{ratio:.3f} ({first:.3f} to {last:.3f})"
            rows.append([case, kind, middle, f"{low} to {high}", spread])
    return markdown.table(["case", "kind", "median", "middle half", "time against xxh3"], rows)


def _shown(case: str, seconds: float) -> str:
    """Bus bandwidth of an all-reduce, time of a step."""
    if case == "step":
        return f"{seconds * 1e3:.1f} ms"
    size_bytes = int(case.split()[2]) << 10
    return f"{bus_factor(WORLD) * size_bytes / seconds / 1e9:.3f} GB/s"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the data plane's security costs.")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(arguments)
    if not own_network():
        raise UsageError("network namespaces cannot be made here", remedy="run this as root")
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dtd-cost-")))
        credential = str(_credential(directory))
        worlds: dict[str, World] = {}
        for kind, place in KINDS.items():
            setup = {"lends": False, "credential": credential if kind == "tls" else ""}
            worlds[kind] = stack.enter_context(World("dtd", WORLD, place(), setup))
            join(worlds[kind])
        print(_table(_measured(worlds, options.rounds)))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DtdError as error:
        sys.exit(str(error))
