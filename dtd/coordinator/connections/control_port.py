"""The control port: authenticates connections, and checks which messages each may send.

Users of this host connect to a Unix-domain socket, and the kernel identifies them.  Callers over
TCP show a certificate of the cluster's own authority (protocol.md, "Security").
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import os
import resource
import socket
import time
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from dtd import diagnostics
from dtd.address import Address, SocketPath, is_host
from dtd.config import WORKER_USER, CoordinatorConfig
from dtd.coordinator.containment import Refusals
from dtd.coordinator.services.audit import Caller
from dtd.errors import ConfigError, ErrorCode, ProtocolError
from dtd.net.addresses.interfaces import interfaces, offered
from dtd.net.clients.tls import clock
from dtd.net.limits import IN_ALL, ConnectionLimiter, OpenConnections, connections_for
from dtd.net.link import Link
from dtd.net.server import Server
from dtd.security import identity
from dtd.security.authority import DIRECTORY, Authority, open_authority
from dtd.security.credential_book import REVOKED_REMEDY
from dtd.security.identity import look_up
from dtd.security.permissions import NO_CREDENTIAL_REMEDY, refusal
from dtd.wire import messages as m

log = structlog.get_logger()

LOOPBACK_HOST: Final = "127.0.0.1"
MOST_FILES: Final = 65536
"""More are not needed, and programs that close all that might be open take their time."""


class ControlPort:
    """The listening side of the control plane.

    Attributes:
        authority: the cluster's; None while there is the socket alone.
        coordinators: addresses for tokens and credentials; empty while there is the socket alone.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        new_link: Callable[[], Link],
        turned_away: Callable[[diagnostics.Diagnostic], object],
    ) -> None:
        self._config = config
        files, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        endless = files == resource.RLIM_INFINITY
        self.connections = OpenConnections(connections_for(MOST_FILES if endless else files))
        unproven = min(IN_ALL, self.connections.most // 4)
        self._turned_away = turned_away
        self._server, self._socket = [
            Server(
                new_link,
                connection_limiter=ConnectionLimiter(in_all=unproven),
                connections=self.connections,
                refused=self.note_refusal,
            )
            for _ in range(2)
        ]
        self.authority: Authority | None = None
        self.coordinators: tuple[Address, ...] = ()
        self._refusals = Refusals()

    async def listen(self) -> Address | None:
        """Bind and answer; the first start that listens over TCP makes the cluster's authority.

        Raises:
            ConfigError: the address cannot be bound, or the authority is damaged.
        """
        await self._serve_users()
        if self._config.listen is None:
            return None
        bound = await self._server.bind(self._config.listen)
        directory = self._config.state_dir / DIRECTORY
        self.coordinators = advertised(self._config.advertise, bound)
        self.authority = open_authority(directory, life_days=self._config.credential_days)
        if self.authority.equip(self.coordinators):
            log.info("authority_made", directory=str(directory), cluster=self.authority.cluster)
        self.authority.renew_server()
        self._server.serve(context=self.authority.server_context())
        return bound

    async def _serve_users(self) -> None:
        config = self._config
        self._socket.bind_path(SocketPath(str(config.socket)))
        named = {
            identity.OPERATOR: config.local_operators,
            identity.WORKER: config.local_workers,
            identity.VIEWER: config.local_viewers,
        }
        users = await asyncio.get_running_loop().run_in_executor(None, look_up, named)
        for name in users.unknown:
            if name != WORKER_USER:  # which only hosts with system services have
                log.warning("local_name_unknown", name=name)
        self._socket.serve(users=users)

    def close(self, farewell: m.Goodbye) -> None:
        self._server.close(farewell)
        self._socket.close(farewell)

    def check(self, caller: Caller, message: m.Message) -> None:
        """Check that a caller may send this message."""
        who = caller.identity
        assert who is not None
        why = remedy = ""
        if self.authority is not None:
            why, remedy = self.authority.standing(who)
        why = why or refusal(who, message)
        if not why and who.is_worker_here and isinstance(message, m.Register):
            why, remedy = self._holder_of_name(message.name)
        if why:
            remedy = remedy or self._remedy(who)
            self.note_refusal(caller.peer_host(), why, remedy)
            raise ProtocolError(ErrorCode.REFUSED, why, remedy=remedy)

    def links(self) -> tuple[Link, ...]:
        return (*self._server.links(), *self._socket.links())

    async def use_new_certificate(self) -> None:
        """Show the coordinator's own certificate, or trust other ones, as they have changed.

        Raises:
            ConfigError: it cannot be read.
        """
        assert self.authority is not None
        loop = asyncio.get_running_loop()
        context = await loop.run_in_executor(None, self.authority.server_context)
        self._server.use(context)

    def _holder_of_name(self, worker: str) -> tuple[str, str]:
        """Whether a worker of this host takes another one's name, and what to do; else empty."""
        if self.authority is None:
            return "", ""
        now_s = self.authority.now_s()  # the host's clock may be a year ahead
        holder = self.authority.credentials.holder_of(worker, now_s=now_s)
        if holder is None:
            return "", ""
        why = f"the name {worker} belongs to the credential {holder.role}/{holder.name}"
        remedy = "choose another with --name, or connect with that credential; if it has been lost:"
        return why, f"{remedy} `dtdctl revoke {holder.name}`"

    def end(self, serials: Iterable[str], why: str) -> None:
        """Close the connections of these certificates, now."""
        gone = frozenset(serials)
        for link in self.links():
            if link.identity is not None and link.identity.serial in gone:
                link.fail(ProtocolError(ErrorCode.REFUSED, why, remedy=REVOKED_REMEDY))

    def host_of(self, link: Link) -> str:
        """The address of the host at the other end, for workers of other hosts as well."""
        who = link.identity
        if who is None or who.uid is None:
            return link.peer_host()
        return self.coordinators[0].host if self.coordinators else LOOPBACK_HOST

    def note_refusal(self, host: str, why: str, remedy: str = "", *, shown: str = "") -> None:
        """Record that a connection was rejected; logged at a bounded rate.

        Args:
            host: its address, or its user on this host.
            why: the reason, for the log.
            remedy: the remedy.
            shown: the reason for `dtdctl status`, where `why` may quote a stranger.
        """
        times = clock(dt.datetime.now(dt.UTC)) if "clock" in why else ""
        diagnostic = diagnostics.turned_away(host, shown or why, remedy, times)
        self._turned_away(diagnostic)
        if self._refusals.note(host, why, time.monotonic()):
            said = f"{why} ({times})" if times else why
            log.warning("connection_refused", host=host, reason=said, remedy=diagnostic.remedy)

    def _remedy(self, who: identity.Identity) -> str:
        if who.role == identity.OUTSIDER:
            return (
                f"the coordinator belongs to uid {os.geteuid()}, and accepts only that user, root "
                "and the users in its settings: ask its operator to add you to local_operators,"
                " local_viewers or local_workers"
            )
        if who.role != identity.STRANGER:
            return ""
        return NO_CREDENTIAL_REMEDY


# --- the addresses at which others reach the coordinator, for tokens and credentials -------------


# Addresses for documentation: nothing is sent to them, the kernel only says how it would be.
_ELSEWHERE: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_DISCARD_PORT: Final = 9


def advertised(setting: str, listen: Address) -> tuple[Address, ...]:
    """The coordinator's addresses for others, most wanted first.

    Args:
        setting: HOST or HOST:PORT, several with commas between; empty: found out.
        listen: where it listens; its port counts where the setting names none.

    Raises:
        ConfigError: nothing is set, and this host has no address but loopback.
    """
    if setting:
        return tuple(_address(word.strip(), listen.port) for word in setting.split(","))
    if not listen.is_wildcard:
        return (listen,)
    return (Address(_primary_host(), listen.port),)


def _address(word: str, port: int) -> Address:
    return Address(word, port) if is_host(word) else Address.parse(word)


def _primary_host() -> str:
    """The address from which this host would call others."""
    for family, elsewhere in _ELSEWHERE:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect((elsewhere, _DISCARD_PORT))
            host = str(asking.getsockname()[0])
            if not ipaddress.ip_address(host).is_loopback:
                return host
    own = offered(interfaces(), ipv4_only=False)  # a network of its own may have no way out
    if own:
        return own[0]
    raise ConfigError(
        "this host has no address at which others could reach it",
        remedy="give one with --advertise HOST",
    )
