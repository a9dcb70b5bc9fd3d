"""A daemon that leaves out fault tolerance in every other block of steps.

    python -m scripts.overhead_daemon coordinator|worker OPTIONS...

For `scripts.overhead` alone: the product has no switch for any of this.  Before the daemon starts,
the functions that compute digests and checksums, send heartbeats and beats, and exchange control
words are replaced by ones that do nothing while a block without them is under way.  Which block it
is follows from the number of committed steps, so all workers change together.  Checksums are
computed as usual in the other blocks, and then not judged: ranks do not change at the same instant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import xxhash

from dtd.wire import keyed_tag, tags
from dtd.wire import messages as m
from dtd.wire.tags import TAG_BYTES

if TYPE_CHECKING:
    from dtd.checkpoint.format import Progress
    from dtd.train.record import StepRecord
    from dtd.train.state.replica import Replica
    from dtd.worker.reporter import JobReporter

BLOCK_VARIABLE: Final = "DTD_OVERHEAD_BLOCK"
BARE_PLACES: Final = (1, 2)
"""Bare blocks of every four: complete, bare, bare, complete."""


def is_bare(step: int, block_steps: int) -> bool:
    """Whether the step after so many committed ones belongs to a bare block."""
    return step // block_steps % 4 in BARE_PLACES


class _Mode:
    """The mode of this process."""

    def __init__(self) -> None:
        self.bare = False
        self.block_steps = int(os.environ[BLOCK_VARIABLE])


_NO_TAG: Final = bytes(TAG_BYTES)


class _Hasher:
    """Like `xxhash.xxh3_128`, and without effect in a bare block."""

    __slots__ = ("_real",)
    mode: _Mode

    def __init__(self, data: bytes) -> None:
        self._real = None if self.mode.bare else xxhash.xxh3_128(data)

    def update(self, data: bytes | memoryview) -> None:
        if self._real is not None:
            self._real.update(data)

    def digest(self) -> bytes:
        return _NO_TAG if self._real is None else self._real.digest()


class _Hashes:
    """Stands for the module in `dtd.wire.tags`."""

    xxh3_128 = _Hasher

    @staticmethod
    def xxh3_128_digest(data: bytes) -> bytes:
        return _Hasher(data).digest()


def _same(ours: bytes, theirs: bytes) -> bool:
    """One side may be a few frames ahead of the other, and in another block."""
    return ours == theirs or _NO_TAG in (ours, theirs)


def patch_frames(mode: _Mode) -> None:
    """No checksums in bare blocks."""
    _Hasher.mode = mode
    tags.xxhash = keyed_tag.xxhash = _Hashes  # type: ignore[assignment, attr-defined]
    tags.CHECKSUM.same = tags.UNDECIDED.same = _same
    keyed_tag.compare_digest = _same  # type: ignore[assignment, attr-defined]


def patch_worker(mode: _Mode) -> None:
    """No digests, heartbeats, beats and control words in bare blocks."""
    from dtd.checkpoint.format import no_progress
    from dtd.train.state import tensors as state

    real_digest = state.state_digest

    def state_digest(replica: Replica, progress: Progress = no_progress) -> bytes:
        bare = is_bare(replica.step, mode.block_steps)
        return bytes(16) if bare else real_digest(replica, progress)

    state.state_digest = state_digest  # before anybody imports it by name

    from dtd.exchange.bridge import RingCollective
    from dtd.net.pulse import LinkHeartbeats
    from dtd.worker.control import ControlConnection
    from dtd.worker.daemon import Worker
    from dtd.worker.reporter import JobReporter

    for owner, name in (
        (LinkHeartbeats, "look"),
        (ControlConnection, "look"),
        (JobReporter, "progress"),
    ):
        _replace(owner, name, lambda real: lambda *a: None if mode.bare else real(*a))
    _replace(Worker, "_heartbeat", lambda real: lambda w: _BEAT if mode.bare else real(w))
    _replace(
        ControlConnection,
        "send",
        lambda real: (
            lambda link, message, *a: None if message is _BEAT else real(link, message, *a)
        ),
    )
    _replace(
        RingCollective,
        "gather",
        lambda real: lambda ring, word: [word] * ring.world_size if mode.bare else real(ring, word),
    )
    _follow_steps(mode, JobReporter)


_BEAT: Final = m.Heartbeat(state="running")


def _replace(owner: type, name: str, wrap: Callable[[Callable[..., Any]], object]) -> None:
    setattr(owner, name, wrap(getattr(owner, name)))


def _follow_steps(mode: _Mode, reporter: type[JobReporter]) -> None:
    """Change with the committed step."""
    real = reporter.step_committed

    def step_committed(self: JobReporter, record: StepRecord) -> None:
        real(self, record)
        mode.bare = is_bare(record.step, mode.block_steps)

    reporter.step_committed = step_committed  # type: ignore[method-assign]


def main() -> int:
    """Become the daemon."""
    kind, *arguments = sys.argv[1:]
    mode = _Mode()
    patch_frames(mode)
    if kind == "coordinator":
        from dtd.coordinator.main import main as coordinator

        return coordinator(arguments)
    patch_worker(mode)
    from dtd.worker.main import main as worker

    return worker(arguments)


if __name__ == "__main__":
    sys.exit(main())
