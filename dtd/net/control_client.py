"""A blocking client of the coordinator: one request, one answer.

For `dtdctl`, the local launcher and scripts.  It needs neither torch nor an event loop, decides
nothing and retries nothing; every failure is one sentence with a remedy.  Requests and the
keys of their answers are in protocol.md, "dtdctl and coordinator".
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self

import msgpack

from dtd import diagnostics
from dtd.address import Endpoint, SocketPath
from dtd.errors import CoordinatorUnreachable, ErrorCode, ProtocolError
from dtd.net.blocking_link import BlockingLink, Connect, connect_tcp
from dtd.wire import messages as m
from dtd.wire.session import Received

if TYPE_CHECKING:  # a plain connection does not load TLS
    import ssl

    from dtd.security.credential import Credential

DEFAULT_TIMEOUT_S: Final = 5.0
CLIENT_NAME: Final = "dtdctl"

LOOK_UP_S: Final = 1.0
"""Longest single wait for bytes: Python handles a Ctrl-C that came just before it only after it."""


_START: Final = (
    "start one with: dtd-coordinator, or name another with --coordinator HOST:PORT or"
    " DTD_COORDINATOR"
)
_FAILURES: Final[tuple[tuple[tuple[type[OSError], ...], str, str], ...]] = (
    ((ConnectionRefusedError, FileNotFoundError), "nothing listens at {at}", _START),
    ((socket.gaierror,), "{at} cannot be resolved: {why}", "check the host's name"),
    (
        (ConnectionError,),
        "{at} closed the connection before it answered",
        "it may be restarting: try again, and read the coordinator's log",
    ),
    ((OSError,), "{at} cannot be reached: {why}", _START),
)
"""Message and remedy of a failed connection; the first entry that fits counts."""


class ControlClient:
    """A connection to the coordinator; use it as a context manager.

    Args:
        address: where the coordinator listens.
        timeout_s: bound on connecting, and on each answer of `request`.
        context: TLS with this side's credential; None for a socket of this host, and for nothing
            else.
        credential: this side's, which error messages about times are about.
        clean: filter that is applied to every answer.

    Attributes:
        renew: the coordinator says that the credential is due for renewal.

    Raises:
        CoordinatorUnreachable: nothing answers there, or not in dtd's protocol.
        RequestRefused: the coordinator does not accept this user.
    """

    def __init__(
        self,
        address: Endpoint,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        context: ssl.SSLContext | None = None,
        credential: Credential | None = None,
        clean: Callable[[Any], Any] | None = None,
    ) -> None:
        self._address = address
        self._credential = credential
        self._clean = clean
        self._timeout_s = timeout_s
        self._has_tls = context is not None
        self.renew = False
        # A socket of this host is there as long as the process is, however busy that may be.
        self._is_there = isinstance(address, SocketPath)
        assert self._has_tls or isinstance(address, SocketPath), "TCP requires TLS"
        try:
            self._link = BlockingLink(
                address,
                role=m.Role.CTL,
                name=CLIENT_NAME,
                timeout_s=timeout_s,
                connect=connect_tcp if context is None else _over_tls(context),
            )
        except (OSError, ProtocolError) as error:
            raise self._unwelcome(error) or self._unreachable(error) from None
        self._is_there = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def request(
        self, message: m.Message, payload: bytes = b"", *, within_s: float | None = None
    ) -> dict[str, Any]:
        """Send a request and return the answer.

        Args:
            message: the request.
            payload: its payload.
            within_s: bound on the time until the answer, for one that is known to take longer.

        Raises:
            RequestRefused: the coordinator refused.
            CoordinatorUnreachable: it did not answer in time, or left.
        """
        self.ask(message, payload)
        wait_s = self._timeout_s if within_s is None else within_s
        answer = self.answer(timeout_s=wait_s)
        if answer is None:
            raise self._unreachable(TimeoutError(), wait_s)
        return answer

    def ask(self, message: m.Message, payload: bytes = b"") -> None:
        """Send a request whose answer is read with `answer`."""
        try:
            self._link.send_payload(message, payload)
        except OSError as error:
            raise self._unreachable(error) from None

    def answer(self, *, timeout_s: float = math.inf) -> dict[str, Any] | None:
        """The next answer, or None when it has not arrived in time; then call this again.

        Raises:
            RequestRefused: the coordinator refused.
            CoordinatorUnreachable: it left, or sent something other than an answer.
        """
        try:
            received = self._received(time.monotonic() + timeout_s)
            if received is None:
                return None
            result, payload = received
            answer = _result_map(payload)
            self.renew = isinstance(result, m.Result) and result.renew
        except (OSError, ProtocolError) as error:
            raise self._unreachable(error) from None
        return answer if self._clean is None else dict(self._clean(answer))

    def _received(self, deadline_s: float) -> Received | None:
        """The next message and its payload, or None when there is none in time."""
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                return self._link.receive(timeout_s=min(left_s, LOOK_UP_S))
            except TimeoutError:
                if left_s <= LOOK_UP_S:
                    return None

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def _unwelcome(self, error: OSError | ProtocolError) -> CoordinatorUnreachable | None:
        """The coordinator says nothing to callers whose certificate TLS rejects."""
        closed = isinstance(error, ConnectionResetError | BrokenPipeError)
        if self._credential is None or not closed:
            return None
        from dtd.net.tls import times_of

        times = times_of(None, self._address, self._credential)
        return CoordinatorUnreachable(
            f"the coordinator's address {self._address} closed the connection before it answered:"
            f" it may be restarting, or not accept this side's credential ({times})",
            remedy=f"try again, {diagnostics.CLOCK_REMEDY}, and read the coordinator's log",
        )

    def _unreachable(
        self, error: OSError | ProtocolError, waited_s: float | None = None
    ) -> CoordinatorUnreachable:
        if self._has_tls and (failure := self._tls_failure(error)) is not None:
            return failure
        if isinstance(self._address, SocketPath):
            here = _unreachable_here(error, self._address)
            if here is not None:
                return here
        at = f"the coordinator's address {self._address}"
        if isinstance(error, ProtocolError):
            return CoordinatorUnreachable(
                f"what answers at {at} is not a dtd coordinator: {error.message}",
                remedy=error.remedy
                or "check the address: --coordinator, DTD_COORDINATOR or the credential names it",
            )
        if isinstance(error, TimeoutError):
            return self._no_answer(waited_s or self._timeout_s)
        message, remedy = next(
            (message, remedy) for kinds, message, remedy in _FAILURES if isinstance(error, kinds)
        )
        why = error.strerror or error
        return CoordinatorUnreachable(message.format(at=at, why=why), remedy=remedy)

    def _tls_failure(self, error: OSError | ProtocolError) -> CoordinatorUnreachable | None:
        fault, times = self._tls_fault(error)
        if not fault:
            return None
        join = "check the credential: `dtdctl join TOKEN` makes a new one"
        return CoordinatorUnreachable(
            f"no TLS connection to the coordinator's address {self._address}: {fault}"
            f"{f' ({times})' if times else ''}",
            remedy=f"{diagnostics.CLOCK_REMEDY}; if they agree, {join}" if times else join,
        )

    def _no_answer(self, waited_s: float) -> CoordinatorUnreachable:
        if self._is_there:
            return CoordinatorUnreachable(
                f"the coordinator at {self._address} takes connections and has not answered within"
                f" {waited_s:g} s: it is busy, or it hangs",
                remedy="try again; if it stays so, read its log: journalctl -u dtd-coordinator",
            )
        return CoordinatorUnreachable(
            f"no answer within {waited_s:g} s from the coordinator's address {self._address}",
            remedy="check that the host is up and the port open; read the coordinator's log",
        )

    def _tls_fault(self, error: OSError | ProtocolError) -> tuple[str, str]:
        """The TLS failure in words, and the times if it is about them; empty if there is none."""
        from ssl import SSLError

        from dtd.net.tls import times_of, tls_fault

        if not isinstance(error, SSLError):
            return "", ""
        return tls_fault(error), times_of(error, self._address, self._credential)


def _unreachable_here(
    error: OSError | ProtocolError, at: SocketPath
) -> CoordinatorUnreachable | None:
    """The cause of a failed local connection, if it is specific to local sockets, else None."""
    if isinstance(error, PermissionError):
        diagnostic = diagnostics.may_not_open(str(at), os.geteuid())
    elif isinstance(error, ProtocolError) and error.code is ErrorCode.REFUSED:
        diagnostic = diagnostics.not_followed(str(at), error.message, error.remedy)
    else:
        return None
    return CoordinatorUnreachable(diagnostic.message, remedy=diagnostic.remedy)


def _over_tls(context: ssl.SSLContext) -> Connect:
    from dtd.net.tls import tls_connect
    from dtd.security.identity import COORDINATOR

    return tls_connect(context, COORDINATOR)


def _result_map(payload: memoryview) -> dict[str, Any]:
    try:
        values = msgpack.unpackb(payload, raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(
            ErrorCode.BAD_PAYLOAD, f"RESULT is not valid msgpack: {error}"
        ) from None
    if not isinstance(values, dict):
        raise ProtocolError(ErrorCode.BAD_PAYLOAD, "RESULT does not carry a map")
    return values
