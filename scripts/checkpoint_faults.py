"""Damage real checkpoints at random and load them: a table of faults and outcomes.

    python -m scripts.checkpoint_faults --count 200 --seed 1

A job is trained, its checkpoints' digests are noted.  Then, again and again: restore the
directory, do one to three faults to it, ask what a worker holds, load it, hash what is in memory.
A bad load is any state but the one that was saved under that name; a missed one is a state older
than the newest sound checkpoint.  Exit code 1 if there is either.

"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dtd.checkpoint.format import (
    MANIFEST_FILE,
    checkpoint_name,
    list_checkpoints,
    parse_name,
    verify,
)
from dtd.checkpoint.tensor_file import MODEL_FILE, OPTIMIZER_FILE
from dtd.engine.control_word import Flags
from dtd.engine.step_protocol import StateKey
from dtd.errors import CheckpointError
from dtd.exchange.in_process import InProcessRing
from dtd.job import from_mapping
from dtd.train.record import CheckpointRecord, EvalRecord, MemoryRecord, StepRecord
from dtd.train.run import JobSessionRunner
from dtd.train.state.tensors import state_digest

# --- faults: to a checkpoint that is there, or to one while it is saved ---------------------------


FILES: Final = (MODEL_FILE, OPTIMIZER_FILE, MANIFEST_FILE)
DISK_EVENTS: Final = 46
"""One more than saving a checkpoint of the faults' job takes: sometimes nobody dies."""


Fault = Callable[[Path, random.Random], Path | None]


def sound(job: Path) -> list[Path]:
    """Checkpoints that verify, newest first."""
    verified = []
    for path in list_checkpoints(job.parent, job.name):
        with contextlib.suppress(CheckpointError):
            verify(path)
            verified.append(path)
    return verified


def _pick(job: Path, rng: random.Random) -> Path:
    """One of the sound checkpoints, the newest most often."""
    newest, *others = sound(job)
    return rng.choice([newest] * len(others) + others)


def flip_bit(job: Path, rng: random.Random) -> None:
    """One bit of one file is another one."""
    path = _pick(job, rng)
    file = path / rng.choice(FILES)
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def cut_short(job: Path, rng: random.Random) -> None:
    """The end of a file is missing, or it is empty."""
    path = _pick(job, rng)
    file = path / rng.choice(FILES)
    content = file.read_bytes()
    file.write_bytes(content[: rng.choice([0, rng.randrange(len(content) - 1)])])


def zeros(job: Path, rng: random.Random) -> None:
    """A file has its length but not its last blocks, as after a power cut."""
    path = _pick(job, rng)
    file = path / rng.choice(FILES)
    content = file.read_bytes()
    kept = rng.randrange(len(content) // 2)
    file.write_bytes(content[:kept] + bytes(len(content) - kept))


def delete_file(job: Path, rng: random.Random) -> None:
    """A file is gone."""
    path = _pick(job, rng)
    (path / rng.choice(FILES)).unlink()


def foreign_file(job: Path, rng: random.Random) -> None:
    """A file is another checkpoint's: sound by itself, but of another state."""
    path = _pick(job, rng)
    other = rng.choice([one for one in sound(job) if one != path])
    file = rng.choice(FILES)
    shutil.copyfile(other / file, path / file)


def rename_directory(job: Path, rng: random.Random) -> None:
    """A checkpoint says that it is newer than it is."""
    path = _pick(job, rng)
    generation, step = parse_name(path.name) or (0, 0)
    renamed = path.with_name(checkpoint_name(generation + 1, step + 1))
    path.rename(renamed)


def empty_directory(job: Path, rng: random.Random) -> None:
    """A directory of the right name and nothing in it."""
    path = job / checkpoint_name(9, rng.randrange(1000))
    path.mkdir(exist_ok=True)


def killed_while_saving(job: Path, rng: random.Random) -> Path:
    """SIGKILL somewhere between the first byte and the last fsync."""
    return _save_again(job, "--die-at", str(rng.randrange(DISK_EVENTS)))


def no_space(job: Path, rng: random.Random) -> Path:
    """The disk takes no more bytes."""
    return _save_again(job, "--file-limit", str(rng.randrange(34_000)))


def read_only(job: Path, rng: random.Random) -> Path:
    """Save without the right to write."""
    del rng
    job.chmod(0o555)
    added = _save_again(job, "--unprivileged")
    job.chmod(0o755)
    return added


def _save_again(job: Path, *options: str) -> Path:
    newest = sound(job)[0]
    generation, step = parse_name(newest.name) or (0, 0)
    added = job / checkpoint_name(generation + 1, step)
    arguments = [str(newest), str(job), str(generation + 1), *options]
    command = [sys.executable, "-m", "scripts.checkpoint_saver", *arguments]
    subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
    return added


FAULTS: Final[Mapping[str, Fault]] = {
    "bit flipped": flip_bit,
    "cut short": cut_short,
    "zeros after a power cut": zeros,
    "file deleted": delete_file,
    "file of another checkpoint": foreign_file,
    "directory renamed": rename_directory,
    "empty directory": empty_directory,
    "killed while saving": killed_while_saving,
    "no space": no_space,
    "read-only directory": read_only,
}


# --- trials ---------------------------------------------------------------------------------------


JOB: Final = "job"
MOST_FAULTS: Final = 3

Key = tuple[int, int]


@dataclass(slots=True)
class Recorder:
    """Hears of checkpoints and warnings; asks for nothing."""

    digests: dict[Key, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def progress(self) -> None:
        """Not of interest."""

    def begins(self, kind: str, shape: Hashable = None) -> None:
        """Not of interest."""

    def step_committed(self, record: StepRecord) -> None:
        """Not of interest."""

    def evaluated(self, record: EvalRecord) -> None:
        """Not of interest."""

    def agreed(self, key: StateKey, digest: bytes) -> None:
        """Not of interest."""

    def checkpoint_saved(self, record: CheckpointRecord) -> None:
        """Note the saved checkpoint and its key."""
        self.digests[record.generation, record.step] = record.digest

    def memory_measured(self, record: MemoryRecord) -> None:
        """Not of interest."""

    def warning(self, event: str, message: str) -> None:
        """Note the warning."""
        self.warnings.append(f"{event}: {message}")

    def flags(self) -> Flags:
        """Nothing is asked."""
        return Flags()


class Trials:
    """Trains the job and tries one seed after the other.

    Args:
        directory: scratch space.
    """

    def __init__(self, directory: Path) -> None:
        self._original, self._live = directory / "original", directory / "live"
        self._recorder = Recorder()
        self._run = self._open(self._recorder)
        self._run.adopt_local(0, 0)
        self._run.run(InProcessRing(1).collective(0), 1)
        self._run.close()
        shutil.copytree(self._live, self._original)
        self._run = self._open(self._recorder)

    def _open(self, recorder: Recorder) -> JobSessionRunner:
        spec = from_mapping(
            {
                "job": {"name": "faults", "task": "synthetic", "steps": 6, "global_batch_size": 8},
                "task": {"parameters": 4000, "rows": 64},
                "optimizer": {"name": "adamw", "lr": 0.01},
                "checkpoint": {"every_steps": 2, "keep": 9, "directory": str(self._live)},
            },
            source="checkpoint_faults",
        )
        run = JobSessionRunner(
            spec=spec,
            job_id=JOB,
            init_from=None,
            device="cpu",
            state_dir=self._live,
            reporter=recorder,
            requests=recorder,
        )
        run.prepare()
        return run

    def close(self) -> None:
        """Leave nothing running."""
        self._run.close()

    def trial(self, seed: int) -> tuple[list[str], str]:
        """(the faults, "" or the failure)."""
        rng = random.Random(seed)  # noqa: S311 - a seeded trial
        shutil.rmtree(self._live)
        shutil.copytree(self._original, self._live)
        truth = dict(self._recorder.digests)
        names: list[str] = []
        for _ in range(rng.randint(1, MOST_FAULTS)):
            if len(sound(self._live / JOB)) > 1:  # one stays
                names.append(rng.choice(list(FAULTS)))
                self._note(FAULTS[names[-1]](self._live / JOB, rng), truth)
        return names, self._load(truth)

    def _note(self, added: Path | None, truth: dict[Key, str]) -> None:
        """A checkpoint that was added holds the state of the generation before its own."""
        if added is not None:
            generation, step = parse_name(added.name) or (0, 0)
            truth[generation, step] = truth.get((generation - 1, step), "")

    def _load(self, truth: dict[Key, str]) -> str:
        """Load the held checkpoint; returns the failure, or ""."""
        intact = [path for path in self._originals() if _same_files(path, self._live / JOB)]
        newest = max((parse_name(path.name) or (0, 0) for path in intact), default=(0, 0))
        self._run.forget()
        self._run._origin._damaged.clear()  # noqa: SLF001 - of the trial before
        key, failure = None, ""
        while True:  # what turns out to be damaged is offered no more
            held = self._run.held()
            if (held.generation, held.step) == key:
                return f"held, but not loaded: {failure}"
            key = (held.generation, held.step)
            if key < newest:
                return f"holds {key}, and {newest} is intact"
            try:
                self._run.adopt_local(*key)
                break
            except CheckpointError as error:
                failure = str(error)
        digest = state_digest(self._run._session.replica).hex()  # noqa: SLF001
        return "" if digest == truth.get(key) else f"bad load of {key}: {digest}"

    def _originals(self) -> list[Path]:
        return list_checkpoints(self._original, JOB)


def _same_files(original: Path, job: Path) -> bool:
    """Whether a checkpoint's bytes are unchanged, without asking the tested code."""
    copy = job / original.name
    return copy.is_dir() and all(
        (copy / file.name).exists() and (copy / file.name).read_bytes() == file.read_bytes()
        for file in original.iterdir()
    )


def run_trials(count: int, seed: int, directory: Path) -> tuple[Counter[str], list[str]]:
    """Try `count` seeds; returns how often each fault was done, and everything that went wrong."""
    done: Counter[str] = Counter()
    wrong: list[str] = []
    trials = Trials(directory)
    try:
        for number in range(seed, seed + count):
            names, problem = trials.trial(number)
            done.update(names)
            if problem:
                wrong.append(f"seed {number}, {', '.join(names)}: {problem}")
    finally:
        trials.close()
    return done, wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Try, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        done, wrong = run_trials(options.count, options.seed, Path(directory))
    print("| fault | times |\n|---|---|")
    for name in FAULTS:
        print(f"| {name} | {done[name]} |")
    print(f"\ntrials {options.count}, faults {done.total()}, bad loads {len(wrong)}")
    for problem in wrong:
        print(problem, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
