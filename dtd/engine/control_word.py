"""The control word: the few in-band bytes that end every step (two-phase commit in band).

A rank offers its entry only after all buckets of the step are averaged, so a complete control word
proves that every rank has *prepared* the step; it is committed unless digests differ.  Entries go
to all ranks down trees, and every rank reduces the same list in rank order, so all reach the same
verdict.  Values to be summed (losses, weights, presence of gradients) are in the step's last bucket
(`dtd.strategy.scalars`).  Pure; the layout is in protocol.md, "Control word".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeVar

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError, UnreadableWord

FORMAT: Final = 1
DIGEST_BYTES: Final = 16
NO_DIGEST_STEP: Final = -1
_ENTRY: Final = struct.Struct("!BBq16s")

CHECKPOINT: Final = 0x04
STOP: Final = 0x08
LEAVE: Final = 0x10
YIELD: Final = 0x20
_KNOWN: Final = CHECKPOINT | STOP | LEAVE | YIELD


T = TypeVar("T")

Ending = Literal["stopped", "left", "yielded"]


class Flags(NamedTuple):
    """Requests to a rank while a generation runs, which its next control word states.

    Attributes:
        checkpoint: a checkpoint after the step.
        stop: the job ends after the step.
        leave: this rank leaves after the step.
        yield_: the generation ends after the step.
    """

    checkpoint: bool = False
    stop: bool = False
    leave: bool = False
    yield_: bool = False

    def asked(self, *, stop: bool, leave: bool) -> Flags:
        """Add the requests of another FREEZE at a step boundary; earlier requests remain.

        A FREEZE is never revoked.  A worker that leaves while the job is being cancelled has the
        coordinator send a second one without `stop`; were that to replace the first, the job would
        end without its last checkpoint.
        """
        return self._replace(
            stop=self.stop or stop, leave=self.leave or leave, yield_=self.yield_ or not stop
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlEntry:
    """One rank's entry at the end of a step.

    Attributes:
        checkpoint: it requests a checkpoint after this step.
        stop: it requests the end of the job after this step.
        leave: it will leave after this step.
        yield_: it requests the end of the generation after this step.
        digest_step: step after which `digest` was taken, NO_DIGEST_STEP for none.
        digest: 16-byte hash of parameters, buffers and optimizer state.
    """

    checkpoint: bool = False
    stop: bool = False
    leave: bool = False
    yield_: bool = False
    digest_step: int = NO_DIGEST_STEP
    digest: bytes = b""

    @classmethod
    def saying(
        cls, flags: Flags, *, digest_step: int = NO_DIGEST_STEP, digest: bytes = b""
    ) -> ControlEntry:
        """The entry of a rank that is ready to commit."""
        return cls(**flags._asdict(), digest_step=digest_step, digest=digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlWord:
    """All entries, reduced; equal on every rank.

    Attributes:
        commit: no digests differ.
        checkpoint: some rank requests a checkpoint.
        stop: some rank requests the end of the job.
        leave: some rank leaves.
        yield_: some rank requests the end of the generation.
        digest_step: step of the digests that were compared, NO_DIGEST_STEP for none.
        digest_agreed: the digests are equal; None when there was none to compare.
        dissenters: ranks whose digest is not the most common one.
        majority: more than half of the voters have the most common one.
    """

    commit: bool
    checkpoint: bool
    stop: bool
    leave: bool
    yield_: bool
    digest_step: int
    digest_agreed: bool | None
    dissenters: tuple[int, ...]
    majority: bool

    def ending(self, flags: Flags) -> Ending | None:
        """Return the generation's ending after this step, if any, for the rank with these `flags`.

        A stop takes precedence: the job is over for leaving ranks, too.
        """
        if self.stop:
            return "stopped"
        if self.leave:
            return "left" if flags.leave else "yielded"
        return "yielded" if self.yield_ else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of comparing the ranks' digests.

    Attributes:
        dissenters: ranks without the most common one; empty if all have the same.
        majority: more than half of the voters have the most common one.
    """

    dissenters: tuple[int, ...]
    majority: bool


def compare(
    said: Sequence[tuple[int, bytes]], *, voters: Collection[int] | None = None
) -> Comparison:
    """Compare all ranks' (step, digest), in rank order; ties go to the greatest.

    So digests decide a tie, not ranks.

    Args:
        said: one for each rank.
        voters: ranks whose digests are counted; None for all.  A rank that has just copied its
            state from another is no independent evidence and must not count towards a majority.
            But what more than half of all ranks have copied alike from the only one that had it
            contradicts that one, if it has another digest itself.
    """
    votes = [one for rank, one in enumerate(said) if voters is None or rank in voters]
    if len(votes) == 1 and any(2 * said.count(one) > len(said) for one in said):
        votes = list(said)
    common = max(votes, key=lambda one: (votes.count(one), one))
    return Comparison(
        dissenters=tuple(rank for rank, one in enumerate(said) if one != common),
        majority=2 * votes.count(common) > len(votes),
    )


def encode_entry(entry: ControlEntry) -> bytes:
    """An entry as the payload of a SMALL_GATHER frame.

    Raises:
        LocalProtocolError: the digest does not fit its step.
    """
    digest_bytes = 0 if entry.digest_step == NO_DIGEST_STEP else DIGEST_BYTES
    if len(entry.digest) != digest_bytes or entry.digest_step < NO_DIGEST_STEP:
        raise LocalProtocolError(
            f"control word entry: digest of {len(entry.digest)} bytes"
            f" for digest step {entry.digest_step}"
        )
    flags = (
        CHECKPOINT * entry.checkpoint
        | STOP * entry.stop
        | LEAVE * entry.leave
        | YIELD * entry.yield_
    )
    return _ENTRY.pack(FORMAT, flags, entry.digest_step, entry.digest.ljust(DIGEST_BYTES, b"\0"))


def decode_entry(data: bytes) -> ControlEntry:
    """The entry in a SMALL_GATHER frame's payload.

    Raises:
        ProtocolError: BAD_PAYLOAD when it is not one.
    """
    if len(data) != _ENTRY.size:
        raise _bad(f"{len(data)} bytes, not {_ENTRY.size}")
    layout, flags, digest_step, digest = _ENTRY.unpack(data)
    if layout != FORMAT or flags & ~_KNOWN:
        raise _bad(f"format {layout} with flags {flags:#04x} is not known")
    if digest_step < NO_DIGEST_STEP:
        raise _bad(f"digest of step {digest_step}")
    return ControlEntry(
        checkpoint=bool(flags & CHECKPOINT),
        stop=bool(flags & STOP),
        leave=bool(flags & LEAVE),
        yield_=bool(flags & YIELD),
        digest_step=digest_step,
        digest=digest if digest_step != NO_DIGEST_STEP else b"",
    )


def _bad(why: str) -> ProtocolError:
    return ProtocolError(ErrorCode.BAD_PAYLOAD, f"control word entry: {why}")


def read_words(words: Sequence[bytes], read: Callable[[bytes], T]) -> list[T]:
    """Read the words of all ranks, given and returned in rank order.

    Args:
        words: one of each rank.
        read: reads one; raises ProtocolError when it is not one.

    Raises:
        UnreadableWord: a rank has said something else.
    """
    said: list[T] = []
    for rank, word in enumerate(words):
        try:
            said.append(read(word))
        except ProtocolError as error:
            raise UnreadableWord(rank, error.message) from error
    return said


def reduce_entries(
    payloads: Sequence[bytes], *, voters: Collection[int] | None = None
) -> ControlWord:
    """Reduce all ranks' entries, given in rank order, to the one verdict; `voters` as in `compare`.

    Raises:
        UnreadableWord: an entry cannot be read.
    """
    entries = read_words(payloads, decode_entry)
    digests = [(entry.digest_step, entry.digest) for entry in entries]
    digest_step = max(step for step, _ in digests)
    compared = compare(digests, voters=voters)
    agreed = None if digest_step == NO_DIGEST_STEP else not compared.dissenters
    return ControlWord(
        commit=agreed is not False,
        checkpoint=any(entry.checkpoint for entry in entries),
        stop=any(entry.stop for entry in entries),
        leave=any(entry.leave for entry in entries),
        yield_=any(entry.yield_ for entry in entries),
        digest_step=digest_step,
        digest_agreed=agreed,
        dissenters=compared.dissenters,
        majority=compared.majority,
    )
