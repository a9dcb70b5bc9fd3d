"""The digest of a state that travels with the next control word, until all ranks agree on it.

A digest takes time and is not waited for: it is taken after the commit and compared in the next
exchange, whichever that is.  A state may be trusted, and a checkpoint of it published, only then.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from dtd.core.engine.control_word import NO_DIGEST_STEP
from dtd.core.engine.step_protocol import StateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDigest:
    """A digest on which ranks have not agreed yet.

    Attributes:
        step: committed steps of the state.
        digest: 16 bytes.
        key: of the state, if it is to be saved; None if it is only compared.
    """

    step: int
    digest: bytes
    key: StateKey | None = None


class DeferredDigest:
    """At most one digest that waits for an exchange.

    Attributes:
        pending: the one; None if none waits.
    """

    def __init__(self) -> None:
        self.pending: PendingDigest | None = None

    def take(self, step: int, digest: bytes, key: StateKey | None = None) -> None:
        """This is compared next, instead of whatever was to be."""
        self.pending = PendingDigest(step=step, digest=digest, key=key)

    def awaits(self, step: int) -> bool:
        """Whether the state after `step` steps waits to be agreed on; the same on all ranks."""
        return self.pending is not None and self.pending.step == step

    def known(self, step: int) -> bytes | None:
        """The digest of the state after `step` steps, if it has been taken."""
        return self.pending.digest if self.pending is not None and self.awaits(step) else None

    @property
    def said(self) -> tuple[int, bytes]:
        """(step, digest) for the next control word."""
        if self.pending is None:
            return NO_DIGEST_STEP, b""
        return self.pending.step, self.pending.digest

    def matches(self, step: int, digest: bytes) -> bool:
        """Whether what all ranks agreed on is what waits here."""
        return self.pending is not None and (self.pending.step, self.pending.digest) == (
            step,
            digest,
        )

    def settled(self) -> PendingDigest | None:
        """All ranks have agreed: what waited, which waits no more."""
        pending, self.pending = self.pending, None
        return pending

    def drop(self) -> None:
        """Nobody will agree on it."""
        self.pending = None
