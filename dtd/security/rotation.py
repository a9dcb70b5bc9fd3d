"""Replaces the authority: workers learn the next one, renew under it, and the old one is dropped.

`dtd.security.signers` keeps on disk how far that is; here it is decided when to go on.  Used by
`dtd.security.authority`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dtd.security import identity
from dtd.security.credential_book import IssuedRecord
from dtd.security.lifetimes import DAY_S
from dtd.security.signers import SPREADS, not_under_way

if TYPE_CHECKING:
    from dtd.security.authority import Authority

SPREAD_S: Final = 3.0
"""So long the next authority is made known at least: a worker that was away calls again."""
LONG_S: Final = 3600.0
"""So long a worker that is connected and does not renew can hold that up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Whether the replacement of the authority advanced, and which members lost access."""

    changed: bool = False
    out: tuple[IssuedRecord, ...] = ()


class AuthorityRotation:
    """Replaces the authority's key, step by step.

    Args:
        authority: what is replaced.
    """

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    def begin(self, *, overlap_s: float) -> None:
        """Begin to replace the authority's key.

        Raises:
            RequestRefused: it is being replaced already.
            ConfigError: it cannot be written.
        """
        authority = self._authority
        lasts_s = overlap_s or authority.life_days * DAY_S
        authority.signers.begin(now_s=authority.now_s(), overlap_s=lasts_s)
        self._authority.own.changed()

    def waiting(self) -> list[IssuedRecord]:
        """The newest certificate of each credential that does not keep up with the replacement."""
        living = self._authority.credentials.living(now_s=self._authority.now_s())
        newest = {one.id: one for one in living}
        return [one for one in newest.values() if not self._authority.keeps_up(one)]

    def go_on(self, connected: Iterable[identity.Identity], *, at_once: bool = False) -> Progress:
        """Take the next step of the replacement, if it is time.

        Args:
            connected: workers that are connected now.
            at_once: end it, whoever has not renewed.

        Raises:
            RequestRefused: `at_once`, and nothing is being replaced.
            ConfigError: it cannot be written.
        """
        rotation = self._authority.signers.rotation
        if rotation is None:
            if at_once:
                raise not_under_way()
            return Progress()
        now_s, waiting = self._authority.now_s(), self.waiting()
        if at_once or now_s >= rotation.ends_s:
            return self._end_rotation(waiting)
        behind = [who for who in connected if not self._authority.keeps_up(self._record_of(who))]
        if rotation.phase == SPREADS:
            patience_s = LONG_S if behind else SPREAD_S
            if now_s < rotation.began_s + patience_s:
                return Progress()
            self._authority.signers.let_renew()
            self._authority.own.changed()
            return Progress(changed=True)
        return Progress() if behind or waiting else self._end_rotation([])

    def _record_of(self, who: identity.Identity) -> IssuedRecord | None:
        return self._authority.credentials.record(who.serial)

    def _end_rotation(self, waiting: list[IssuedRecord]) -> Progress:
        """Who has not renewed is out; tokens name the old authority, and are void."""
        # First: whatever fails here, the coordinator shows what counts.
        self._authority.own.changed()
        # The end comes last: once it is written down, nobody comes back to what failed before it.
        out = {one.id for one in waiting}
        gone = self._authority.credentials.take_back(out, now_s=self._authority.now_s())
        self._authority.tokens.clear()
        self._authority.signers.end()
        self._authority.own.remove()
        return Progress(changed=True, out=tuple(gone))
