"""The control port: who may call, who he is, and what he may say.

The listening address alone decides how callers are told apart (protocol.md, "Security"): beyond
loopback by certificates of the cluster's authority, on loopback by what the kernel says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from dtd.address import Address
from dtd.config import CoordinatorConfig
from dtd.coordinator.advertised import advertised
from dtd.coordinator.refusals import Refusals
from dtd.core.doorkeeper import Doorkeeper
from dtd.core.rights import NO_CREDENTIAL_REMEDY, refusal
from dtd.errors import ErrorCode, ProtocolError
from dtd.net.link import Link
from dtd.net.server import Server
from dtd.security import identity
from dtd.security.authority import DIRECTORY, Authority, open_authority
from dtd.wire import messages as m

log = structlog.get_logger()

REVOKED_REMEDY: Final = "ask the operator for a new token, and join again"


class ControlPort:
    """The listening side of the control plane.

    Args:
        config: where to listen, and under which addresses others reach it.
        new_link: makes the protocol object of a connection.
        now: the clock of the daemon, in seconds.
        turned_away: told of each who was: host, why, and what to do.

    Attributes:
        authority: the cluster's, None on loopback.
        coordinators: what tokens and credentials say, empty on loopback.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        new_link: Callable[[], Link],
        now: Callable[[], float],
        turned_away: Callable[[str, str, str], None],
    ) -> None:
        self._config = config
        self._now = now
        self._turned_away = turned_away
        self._server = Server(new_link, doorkeeper=Doorkeeper(), refused=self.note_refusal)
        self.authority: Authority | None = None
        self.coordinators: tuple[Address, ...] = ()
        self._refusals = Refusals()

    async def listen(self) -> Address:
        """Bind and answer; beyond loopback the first start makes the cluster's authority.

        Raises:
            ConfigError: the address cannot be bound, or the authority is damaged.
        """
        bound = await self._server.bind(self._config.listen)
        if self._config.listen.is_loopback:
            self._server.serve(asks_kernel=True)
            return bound
        directory = self._config.state_dir / DIRECTORY
        self.coordinators = advertised(self._config.advertise, bound)
        self.authority = open_authority(directory)
        if self.authority.equip(self.coordinators):
            log.info("authority_made", directory=str(directory), cluster=self.authority.cluster)
        self._server.serve(context=self.authority.server_context())
        return bound

    def close(self, farewell: m.Goodbye) -> None:
        """Say goodbye to everyone."""
        self._server.close(farewell)

    def check(self, link: Link, message: m.Message) -> None:
        """Whether whoever is at the other end may say this.

        Raises:
            ProtocolError: REFUSED, he may not.
        """
        who = link.identity
        assert who is not None
        why, remedy = refusal(who, message), ""
        if self.authority is not None and self.authority.credentials.is_revoked(who.serial):
            why, remedy = f"the credential of {who} is revoked", REVOKED_REMEDY
        if why:
            remedy = remedy or self._remedy(who)
            self.note_refusal(link.peer_host(), why, remedy)
            raise ProtocolError(ErrorCode.REFUSED, why, remedy=remedy)

    def end(self, serials: Iterable[str], why: str) -> None:
        """Close the connections of these certificates, now."""
        gone = frozenset(serials)
        for link in self._server.links():
            if link.identity is not None and link.identity.serial in gone:
                link.fail(ProtocolError(ErrorCode.REFUSED, why, remedy=REVOKED_REMEDY))

    def note_refusal(self, host: str, why: str, remedy: str = "") -> None:
        """Remember that somebody was turned away; logged now and then, however often."""
        self._turned_away(host, why, remedy)
        if self._refusals.note(host, why, self._now()):
            log.warning("connection_refused", host=host, reason=why)

    def _remedy(self, who: identity.Identity) -> str:
        if who.role != identity.STRANGER:
            return ""
        if self.authority is not None:
            return NO_CREDENTIAL_REMEDY
        return (
            f"this coordinator belongs to uid {os.geteuid()} and listens to that user and root"
            " alone: run the command as one of them"
        )
