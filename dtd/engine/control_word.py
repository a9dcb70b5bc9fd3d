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


NO_FLAGS: Final = Flags()
_BITS: Final = (0x04, 0x08, 0x10, 0x20)
"""The bits of the flags, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlEntry:
    """One rank's entry at the end of a step.

    Attributes:
        flags: its requests.
        digest_step: step after which `digest` was taken, NO_DIGEST_STEP for none.
        digest: 16-byte hash of parameters, buffers and optimizer state.
    """

    flags: Flags = NO_FLAGS
    digest_step: int = NO_DIGEST_STEP
    digest: bytes = b""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlWord:
    """All entries, reduced; equal on every rank.

    Attributes:
        flags: what some rank requests.
        compared: the comparison of the digests; None when there was none to compare.
    """

    flags: Flags
    compared: Comparison | None

    @property
    def commit(self) -> bool:
        """No digests differ."""
        return self.compared is None or not self.compared.dissenters

    def ending(self, own: Flags) -> Ending | None:
        """Return the generation's ending after this step, if any, for a rank with these flags.

        A stop takes precedence: the job is over for leaving ranks, too.
        """
        if self.flags.stop:
            return "stopped"
        if self.flags.leave:
            return "left" if own.leave else "yielded"
        return "yielded" if self.flags.yield_ else None


def encode_entry(entry: ControlEntry) -> bytes:
    """An entry as the payload of a SMALL_GATHER frame."""
    digest_bytes = 0 if entry.digest_step == NO_DIGEST_STEP else DIGEST_BYTES
    if len(entry.digest) != digest_bytes or entry.digest_step < NO_DIGEST_STEP:
        raise LocalProtocolError(
            f"control word entry: digest of {len(entry.digest)} bytes"
            f" for digest step {entry.digest_step}"
        )
    flags = sum(bit for bit, is_set in zip(_BITS, entry.flags, strict=True) if is_set)
    return _ENTRY.pack(FORMAT, flags, entry.digest_step, entry.digest.ljust(DIGEST_BYTES, b"\0"))


def decode_entry(data: bytes) -> ControlEntry:
    """The entry in a SMALL_GATHER frame's payload.

    Raises:
        ProtocolError: BAD_PAYLOAD when it is not one.
    """
    if len(data) != _ENTRY.size:
        raise _bad(f"{len(data)} bytes, not {_ENTRY.size}")
    layout, flags, digest_step, digest = _ENTRY.unpack(data)
    if layout != FORMAT or flags & ~sum(_BITS):
        raise _bad(f"format {layout} with flags {flags:#04x} is not known")
    if digest_step < NO_DIGEST_STEP:
        raise _bad(f"digest of step {digest_step}")
    return ControlEntry(
        flags=Flags(*(bool(flags & bit) for bit in _BITS)),
        digest_step=digest_step,
        digest=digest if digest_step != NO_DIGEST_STEP else b"",
    )


def _bad(why: str) -> ProtocolError:
    return ProtocolError(ErrorCode.BAD_PAYLOAD, f"control word entry: {why}")


def read_words(words: Sequence[bytes], read: Callable[[bytes], T]) -> list[T]:
    """Read the words of all ranks, given and returned in rank order.

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


def reduce_entries(payloads: Sequence[bytes]) -> ControlWord:
    """Reduce all ranks' entries, given in rank order, to the one verdict."""
    entries = read_words(payloads, decode_entry)
    digests = [(entry.digest_step, entry.digest) for entry in entries]
    has_digest = any(step != NO_DIGEST_STEP for step, _ in digests)
    return ControlWord(
        flags=Flags(*map(any, zip(*(entry.flags for entry in entries), strict=True))),
        compared=compare(digests) if has_digest else None,
    )
