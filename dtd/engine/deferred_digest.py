"""The digest of a state, which travels in the next control word until all ranks agree on it.

A digest takes time, and training does not wait for it: it is taken after the commit and compared in
the next exchange of any kind.  Only then may a state be trusted, and its checkpoint published.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dtd.engine.control_word import NO_DIGEST_STEP
from dtd.engine.shard_digests import ShardDigests
from dtd.engine.step_protocol import StateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDigest:
    """A digest on which the ranks have not agreed yet.

    Attributes:
        step: number of committed steps of the state.
        digest: 16 bytes; empty until `combine`, if the state is sharded.
        shards: this rank's hashes of a sharded state; None for any other.
        key: the state's key, if it is to be saved; None if it is only compared.
    """

    step: int
    digest: bytes
    key: StateKey | None = None
    shards: ShardDigests | None = None


class DeferredDigest:
    """Holds at most one digest that waits for an exchange.

    Attributes:
        pending: that digest; None if none waits.
    """

    def __init__(self) -> None:
        self.pending: PendingDigest | None = None

    def take(self, step: int, digest: bytes, key: StateKey | None = None) -> None:
        """Compare this digest next, replacing a pending one."""
        self.pending = PendingDigest(step=step, digest=digest, key=key)

    def take_shards(self, step: int, shards: ShardDigests, key: StateKey | None = None) -> None:
        """Compare the digest of a sharded state next, which is not known yet."""
        self.pending = PendingDigest(step=step, digest=b"", key=key, shards=shards)

    @property
    def uncombined(self) -> tuple[int, ShardDigests] | None:
        """(step, hashes) that the ranks exchange before they can compare the pending digest."""
        pending = self.pending
        if pending is None or pending.digest or pending.shards is None:
            return None
        return pending.step, pending.shards

    def combine(self, step: int, shards: ShardDigests, digest: bytes) -> None:
        """The ranks have exchanged these hashes, which come to this digest: the pending one's?

        Hashes of an earlier generation are of other segments; their digest is not known.
        """
        if self.pending is not None and self.uncombined == (step, shards):
            self.pending = replace(self.pending, digest=digest)

    def awaits(self, step: int) -> bool:
        """Whether the state after `step` steps awaits agreement; equal on all ranks."""
        return self.pending is not None and self.pending.step == step

    def known(self, step: int) -> bytes | None:
        """The digest of the state after `step` steps, if it has been taken."""
        if self.pending is None or not self.awaits(step):
            return None
        return self.pending.digest or None

    @property
    def said(self) -> tuple[int, bytes]:
        """(step, digest) for the next control word."""
        if self.pending is None:
            return NO_DIGEST_STEP, b""
        return self.pending.step, self.pending.digest

    def matches(self, step: int, digest: bytes) -> bool:
        """Whether all ranks agreed on the pending digest."""
        return self.pending is not None and (self.pending.step, self.pending.digest) == (
            step,
            digest,
        )

    def settled(self) -> PendingDigest | None:
        """Return the pending digest, on which all ranks have agreed, and clear it."""
        pending, self.pending = self.pending, None
        return pending

    def drop(self) -> None:
        """Discard the pending digest: no agreement on it will follow."""
        self.pending = None
