"""A blocking client of the coordinator: one request, one answer.

For `dtdctl`, the local launcher and scripts.  It needs neither torch nor an event loop, decides
nothing and retries nothing; every failure is one sentence with a remedy.  Requests and the
keys of their answers are in protocol.md, "dtdctl and coordinator".
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

import msgpack

from dtd import diagnostics
from dtd.address import Endpoint, SocketPath
from dtd.diagnostics import Diagnostic
from dtd.errors import CoordinatorUnreachable, ErrorCode, ProtocolError
from dtd.net.clients.blocking_link import BlockingLink, Connect, connect_tcp
from dtd.wire import messages as m
from dtd.wire.session import Received

if TYPE_CHECKING:  # a plain connection does not load TLS
    import ssl

    from dtd.security.credential import Credential

DEFAULT_TIMEOUT_S: Final = 5.0
CLIENT_NAME: Final = "dtdctl"

LOOK_UP_S: Final = 1.0
"""Longest single wait for bytes: Python handles a Ctrl-C that came just before it only after it."""


def trouble_of(
    error: OSError | ProtocolError, at: Endpoint, *, within_s: float, is_there: bool = False
) -> Diagnostic:
    """Why the coordinator cannot be worked with."""
    where = str(at)
    if isinstance(error, ProtocolError):
        remedy = error.remedy or "check the address"
        return diagnostics.not_followed(where, error.message, remedy)
    if isinstance(at, SocketPath):
        if isinstance(error, PermissionError):
            return diagnostics.may_not_open(where, os.geteuid())
    else:
        from ssl import SSLError

        from dtd.net.clients.tls import tls_fault

        if isinstance(error, SSLError):
            return diagnostics.no_tls(where, tls_fault(error))
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return diagnostics.nobody_listens(where)
    if isinstance(error, TimeoutError | BlockingIOError | ConnectionAbortedError):
        return diagnostics.no_answer(where, within_s, is_there=is_there)
    if isinstance(error, ConnectionError):
        return diagnostics.hung_up(where, is_there=is_there)
    return diagnostics.cannot_call(where, error.strerror or str(error))


class ControlClient:
    """A connection to the coordinator; use it as a context manager.

    Args:
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
        self.renew = False
        self._is_there = False
        assert context is not None or isinstance(address, SocketPath), "TCP requires TLS"
        try:
            self._link = BlockingLink(
                address,
                role=m.Role.CTL,
                name=CLIENT_NAME,
                timeout_s=timeout_s,
                connect=connect_tcp if context is None else _over_tls(context),
            )
        except (OSError, ProtocolError) as error:
            raise self._unreachable(error) from None
        self._is_there = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def request(
        self, message: m.Message, payload: bytes = b"", *, within_s: float | None = None
    ) -> dict[str, Any]:
        """Send a request and return the answer.

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
        self._link.close()

    def _unreachable(
        self, error: OSError | ProtocolError, waited_s: float | None = None
    ) -> CoordinatorUnreachable:
        trouble = trouble_of(
            error,
            self._address,
            within_s=self._timeout_s if waited_s is None else waited_s,
            is_there=self._is_there,
        )
        if self._credential is not None and trouble.kind in diagnostics.OF_TIME:
            from dtd.net.clients.tls import times_of

            # To a caller whose certificate TLS rejects the coordinator says nothing.
            seen = None if isinstance(error, ConnectionError) else error
            trouble = replace(trouble, times=times_of(seen, self._address, self._credential))
        remedy = trouble.remedy.replace("dtd-worker join", "dtdctl join")
        return CoordinatorUnreachable(trouble.sentence, remedy=remedy)


def _over_tls(context: ssl.SSLContext) -> Connect:
    from dtd.net.clients.tls import tls_connect
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
