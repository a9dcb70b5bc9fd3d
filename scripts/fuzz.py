"""Fuzz the readers of foreign input: python -m scripts.fuzz TARGET|all [--runs N] [--seed N].

With atheris the inputs follow coverage; with --plain they are seeded mutations, the same ones each
time, as the tests make them.  The last line of each target says how many inputs and frames it had.
A defect ends the run with its traceback and the input that shows it (`--replay FILE`).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scripts.fuzz_targets import Target

MAX_INPUT_BYTES: Final = 2048
FIRST_INPUTS: Final = 64


def mutations(target: Target, *, seed: int, runs: int) -> Iterator[bytes]:
    """Inputs for a target: noise, and what becomes of its seeds under a few small changes."""
    source = random.Random(seed)  # noqa: S311 - the same inputs each time
    for _ in range(runs):
        if target.seeds and source.random() < 0.9:
            data = bytearray(source.choice(target.seeds))
            for _ in range(source.randint(0, 4)):
                _change(data, source)
            yield bytes(data)
        else:
            yield source.randbytes(source.randint(0, MAX_INPUT_BYTES))


def _change(data: bytearray, source: random.Random) -> None:
    at = source.randint(0, len(data))
    kind = source.randrange(4)
    if kind == 0:
        data[at:at] = source.randbytes(source.randint(1, 8))
    elif kind == 1:
        del data[at : at + source.randint(1, 64)]
    elif kind == 2 and at < len(data):
        data[at] ^= 1 << source.randrange(8)
    else:
        length = source.randint(1, 64)
        data[at:at] = data[at : at + length]


class Counter:
    """Runs a target on a loop of its own, and counts."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self.inputs = 0
        self.units = 0

    def __call__(self, data: bytes) -> None:
        """One input; a link needs a running loop for its timers."""
        self.units += self._loop.run_until_complete(self._run(data))
        self.inputs += 1

    async def _run(self, data: bytes) -> int:
        return self._target.run(data)

    def close(self) -> None:
        self._loop.close()


def run_plain(target: Target, *, seed: int, runs: int) -> Counter:
    """Seeded mutations, without atheris.

    Raises:
        Exception: whatever the defect is, with the input in a note.
    """
    counter = Counter(target)
    try:
        for data in mutations(target, seed=seed, runs=runs):
            try:
                counter(data)
            except BaseException as error:
                error.add_note(f"input: {data.hex()}")
                raise
    finally:
        counter.close()
    return counter


def _run_guided(name: str, *, seed: int, runs: int, corpus: Path) -> None:
    import atheris

    with atheris.instrument_imports(include=["dtd", "scripts.fuzz_links"]):
        from scripts.fuzz_targets import TARGETS

    target = TARGETS[name]
    counter = Counter(target)
    started_s = time.monotonic()

    def one(data: bytes) -> None:
        counter(data)
        if counter.inputs == runs:  # libFuzzer ends the process itself
            _report(name, counter, time.monotonic() - started_s)

    corpus.mkdir(parents=True, exist_ok=True)
    for index, data in enumerate((*target.seeds, *mutations(target, seed=seed, runs=FIRST_INPUTS))):
        (corpus / f"seed-{index}").write_bytes(data)
    options = [f"-runs={runs}", f"-seed={seed}", f"-max_len={MAX_INPUT_BYTES}", "-len_control=0"]
    atheris.Setup([sys.argv[0], *options, "-verbosity=0", str(corpus)], one)
    atheris.Fuzz()


def _report(name: str, counter: Counter, seconds: float) -> None:
    print(f"{name}: {counter.inputs} inputs, {counter.units} frames, {seconds:.0f} s", flush=True)


def _one_each(given: argparse.Namespace) -> int:
    """A process for each target, since libFuzzer ends its process."""
    from scripts.fuzz_targets import TARGETS

    for name in TARGETS if given.target == "all" else (given.target,):
        corpus = given.corpus / name if given.target == "all" else given.corpus
        command = [sys.executable, "-m", "scripts.fuzz", name, "--runs", str(given.runs)]
        command += ["--seed", str(given.seed), "--corpus", str(corpus)]
        code = subprocess.run(command, check=False).returncode
        if code:
            return code
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; returns the exit code."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.partition("\n\n")[0])
    parser.add_argument("target", nargs="?", default="all", help="a name of --list, or all")
    parser.add_argument("--runs", type=int, default=20_000, metavar="N", help="inputs a target")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument(
        "--corpus", type=Path, metavar="DIR", help="keep inputs, and go on from them"
    )
    parser.add_argument("--plain", action="store_true", help="seeded mutations, no coverage")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run this one input")
    parser.add_argument("--list", action="store_true", help="print the targets")
    given = parser.parse_args(arguments)
    if given.plain or given.replay or given.list:
        return _run_plainly(given)
    if given.corpus is None:
        with tempfile.TemporaryDirectory(prefix="dtd-fuzz-") as directory:
            given.corpus = Path(directory)
            return _one_each(given)
    if given.target == "all":
        return _one_each(given)
    _run_guided(given.target, seed=given.seed, runs=given.runs, corpus=given.corpus)
    return 0


def _run_plainly(given: argparse.Namespace) -> int:
    from scripts.fuzz_targets import TARGETS

    if given.list:
        print("\n".join(TARGETS))
    elif given.replay is not None:
        Counter(TARGETS[given.target])(given.replay.read_bytes())
    else:
        for name in TARGETS if given.target == "all" else (given.target,):
            started_s = time.monotonic()
            counter = run_plain(TARGETS[name], seed=given.seed, runs=given.runs)
            _report(name, counter, time.monotonic() - started_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
