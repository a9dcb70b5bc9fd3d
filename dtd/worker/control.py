"""The worker's connection to the coordinator: opened, monitored, and reopened when it is lost.

Training does not depend on it.  The coordinator answers every heartbeat, so a connection without
answers is dead, whatever its TCP state; it is closed and reopened.  Messages go to the member core
(`dtd.worker.daemon`); none are decided on here.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import queue
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import structlog

from dtd import diagnostics
from dtd.address import Address, SocketPath
from dtd.cluster.workers.detector import Detector
from dtd.diagnostics import REFUSED, Diagnostic
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.addresses.dialling import CONNECT_TIMEOUT_S, Dialling
from dtd.net.clients.control_client import trouble_of
from dtd.net.clients.tls import tls_fault
from dtd.net.link import Link, LinkHandler, attach
from dtd.net.local_socket import call
from dtd.security.identity import COORDINATOR
from dtd.security.targets import Target
from dtd.wire import messages as m
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES, Hold
from dtd.wire.session import hello

log = structlog.get_logger()

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 0.5
LONGEST_REFUSED_PAUSE_S: Final = 5.0
"""Longest pause between attempts of a worker that was refused: the reason may pass."""
GOODBYE_S: Final = 2.0
"""Longest time until the coordinator has read GOODBYE, for a worker that leaves."""
SILENT_TIMEOUTS: Final = 2
"""A connection is dead after so many heartbeat time-outs without an answer."""

_COORDINATOR: Final = "coordinator"
_Answers = queue.SimpleQueue[tuple[m.Message, bytes]]


class _Trouble(NamedTuple):
    """Why the coordinator cannot be worked with, and the error that ended the connection."""

    diagnostic: Diagnostic
    error: BaseException | None = None


class ControlConnection:
    """Keeps one connection to the coordinator.

    Args:
        targets: tells where it listens; they are called in turn until one answers.

    Attributes:
        diagnostic: why the coordinator cannot be worked with; None when it can.
    """

    def __init__(
        self,
        targets: Callable[[], Sequence[Target]],
        *,
        name: str,
        opened: Callable[[], None],
        received: Callable[[m.Message, memoryview], None],
        troubled: Callable[[Diagnostic], None] = lambda _: None,
    ) -> None:
        self._targets = targets
        self._name = name
        self._opened = opened
        self._received = received
        self._troubled = troubled
        self._link: Link | None = None
        self._disconnected = asyncio.Event()
        self._was_welcome = self._was_registered = self._leaving = self._owes_answer = False
        self._detector: Detector | None = None
        self._calls = ""
        self._trouble: _Trouble | None = None
        self._logged: dict[str, Diagnostic] = {}
        self.diagnostic: Diagnostic | None = None

    def use(self, targets: Callable[[], Sequence[Target]]) -> None:
        """Use these targets from the next attempt on; an open connection stays."""
        self._targets = targets

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent now."""
        return self._link is not None

    def send(self, message: m.Message, payload: bytes = b"") -> None:
        """Send a message; lost when there is no connection."""
        if self._link is not None:
            self._link.send(message, payload)

    def beat(self, heartbeat: m.Heartbeat) -> None:
        """Send a heartbeat once the last one is answered: a coordinator that is late needs no more.

        Where it has less of a processor than all heartbeats take, they would pile up in front of
        everything else, and the answers would come ever later.
        """
        if self._link is not None and not self._owes_answer:
            self._owes_answer = True
            self._link.send(heartbeat)

    async def leave(self, reason: str) -> None:
        """Send GOODBYE, and wait until the coordinator has read it and closes the connection.

        Closed by this side at once, the connection would fail under an answer that the coordinator
        is just sending, and everything that it has not read by then would be lost.
        """
        if self._link is None:
            return
        self._leaving = True
        self._link.send(m.Goodbye(reason=reason))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self._disconnected.wait()
        if self._link is not None:
            self._link.close()

    async def keep(self) -> None:
        """Connect, and again whenever it is lost, until cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            for target in self._targets():
                if await self._keep_one(target):
                    pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._longest_pause_s())

    async def _keep_one(self, target: Target) -> bool:
        """Call, and stay while the connection stands; whether we were registered there."""
        self._disconnected.clear()
        self._was_welcome = self._was_registered = False
        self._trouble = None
        self._calls = str(target)
        trouble = await self._connect(target)
        if trouble is None:
            await self._disconnected.wait()
            trouble = self._trouble
        if trouble is not None:
            self._note(await self._with_times(trouble, target))
        return self._was_registered

    async def _with_times(self, trouble: _Trouble, target: Target) -> Diagnostic:
        diagnostic = trouble.diagnostic
        known = self._logged.get(diagnostic.where)
        if diagnostic == known:  # its times were found out once
            return known
        if target.credential is None or diagnostic.kind not in diagnostics.OF_TIME:
            return diagnostic
        from dtd.net.clients.tls import times_of

        loop = asyncio.get_running_loop()
        times = await loop.run_in_executor(
            None, times_of, trouble.error, target.address, target.credential
        )
        return dataclasses.replace(diagnostic, times=times)

    def _longest_pause_s(self) -> float:
        refused = self.diagnostic is not None and self.diagnostic.kind == REFUSED
        return LONGEST_REFUSED_PAUSE_S if refused else LONGEST_PAUSE_S

    def _note(self, diagnostic: Diagnostic) -> None:
        """The coordinator cannot be used; the worker keeps connecting, and this is logged once."""
        self.diagnostic = diagnostic
        self._troubled(diagnostic)
        if diagnostic == self._logged.get(diagnostic.where):
            return
        self._logged[diagnostic.where] = diagnostic
        said = {
            "kind": diagnostic.kind,
            "address": diagnostic.where,
            "message": diagnostic.sentence,
            "remedy": diagnostic.remedy,
        }
        if diagnostic.kind == REFUSED:
            log.warning("registration_refused", worker=self._name, **said)
        else:
            log.warning("coordinator_unreachable", **said)

    async def _connect(self, target: Target) -> _Trouble | None:
        address = target.address
        if isinstance(address, SocketPath):
            return await self._connect_here(address)
        assert target.context is not None, "a TCP connection to a coordinator requires a credential"
        dialling = Dialling([address], self._new_link, opened=self._take, context=target.context)
        if await dialling.run():
            return None
        failure = next(iter(dialling.failures.values()))
        if isinstance(failure, DtdError):
            return _trouble_of_end(failure, self._calls)
        if isinstance(failure, ConnectionResetError):
            return _Trouble(diagnostics.no_tls(str(address), tls_fault(failure)), failure)
        return _Trouble(trouble_of(failure, address, within_s=CONNECT_TIMEOUT_S), failure)

    def _take(self, link: Link, _address: Address) -> None:
        link.handler = self
        self._on_open(link)

    async def _connect_here(self, at: SocketPath) -> _Trouble | None:
        """Connect on this host; returns the failure."""
        loop = asyncio.get_running_loop()
        try:
            made = await loop.run_in_executor(None, call, at, CONNECT_TIMEOUT_S)
        except (OSError, ProtocolError) as error:
            return _Trouble(trouble_of(error, at, within_s=CONNECT_TIMEOUT_S))
        await attach(made, lambda: self._new_link(self))
        return None

    def look(self, now: float) -> None:
        """Cut the connection if nothing has come back for too long."""
        if self._link is None or self._detector is None:
            return
        for _, reason in self._detector.suspects(now):
            log.warning("coordinator_silent", reason=reason)
            self._link.abort()

    def _new_link(self, handler: LinkHandler) -> Link:
        said = hello(m.Role.WORKER, self._name, max_payload_bytes=DEFAULT_MAX_PAYLOAD_BYTES)
        return Link(handler, hello=said, peer_role=COORDINATOR)

    # --- LinkHandler -------------------------------------------------------------------------

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        self._on_open(link)

    def _on_open(self, link: Link) -> None:
        self._link, self._detector, self._was_welcome = link, None, True
        self._owes_answer = False
        self._opened()

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """Handle a message of the coordinator: it lives."""
        now = asyncio.get_running_loop().time()
        if isinstance(message, m.Registered):
            if not self._was_registered:
                log.info("coordinator_connected", address=self._calls)
            self.diagnostic, self._was_registered = None, True
            self._logged.clear()
            self._detector = Detector(
                timeout_s=SILENT_TIMEOUTS * message.heartbeat_timeout_s,
                tick_s=message.heartbeat_interval_s,
            )
            self._detector.watch(_COORDINATOR, now)
        if self._detector is not None:
            self._detector.heard(_COORDINATOR, now)
        self._owes_answer &= not isinstance(message, m.HeartbeatAck)
        self._received(message, payload)

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """The connection is lost: training continues, and the worker reconnects."""
        if isinstance(error, ProtocolError) or not self._was_welcome:
            self._trouble = _trouble_of_end(error, self._calls)
        if link is self._link:
            self._link = None
        if self._was_registered and not self._leaving:
            log.warning(
                "coordinator_lost",
                error=str(error) if error else "the connection was closed normally",
            )
        self._disconnected.set()


class Requests:
    """Requests of threads that wait for the coordinator's answers.

    A connection that is lost meanwhile costs the answer that was on its way, and nothing else: what
    is unanswered is asked again on the next one.

    Args:
        send: sends to the coordinator, on the event loop; lost while there is no connection.
    """

    def __init__(self, *, send: Callable[[m.Message], None], post: Callable[..., None]) -> None:
        self._send = send
        self._post = post
        self._unanswered: dict[tuple[object, ...], tuple[m.Message, _Answers]] = {}

    def ask(self, request: m.Message, *, timeout_s: float | None = None) -> tuple[Any, bytes]:
        """Return the answer to a GET_PACKAGE, GET_PARTS or GET_DATA, and its payload; blocking.

        Raises:
            TimeoutError: there is none in time.
        """
        answers: _Answers = queue.SimpleQueue()
        self._post(self._begin, request, answers)
        try:
            return answers.get(timeout=timeout_s)
        except queue.Empty:
            self._post(self._give_up, request, answers)
            raise TimeoutError from None

    def received(self, answer: m.Message, payload: bytes = b"") -> None:
        """Take an answer; the second one to the same request is passed over.  On the event loop."""
        _, answers = self._unanswered.pop(_asked_for(answer), (None, None))
        if answers is not None:
            answers.put((answer, payload))

    def ask_again(self) -> None:
        """Repeat what is unanswered, on a new connection.  On the event loop."""
        for request, _ in self._unanswered.values():
            self._send(request)

    def _begin(self, request: m.Message, answers: _Answers) -> None:
        self._unanswered[_asked_for(request)] = request, answers
        self._send(request)

    def _give_up(self, request: m.Message, answers: _Answers) -> None:
        if self._unanswered.get(_asked_for(request)) == (request, answers):
            del self._unanswered[_asked_for(request)]


def _asked_for(message: m.Message) -> tuple[object, ...]:
    """The fields that a request and its answer have in common."""
    if isinstance(message, m.GetPackage | m.Package):
        return message.digest, message.offset
    if isinstance(message, m.GetData | m.DataSources):
        return message.job, message.name
    assert isinstance(message, m.GetParts | m.Parts)
    return message.job, message.step


def _trouble_of_end(error: DtdError | None, where: str) -> _Trouble:
    """Why the coordinator closed the connection."""
    if isinstance(error, ProtocolError) and error.code is ErrorCode.TIMEOUT:
        return _Trouble(diagnostics.no_answer(where, CONNECT_TIMEOUT_S))
    if isinstance(error, ProtocolError) and error.code is ErrorCode.BAD_MAGIC:
        return _Trouble(diagnostics.hung_up(where))
    if isinstance(error, ProtocolError):
        return _Trouble(diagnostics.refused(where, error.message, error.remedy))
    if error is not None and isinstance(error.__cause__, ssl.SSLError):
        return _Trouble(diagnostics.no_tls(where, tls_fault(error.__cause__)), error.__cause__)
    return _Trouble(diagnostics.hung_up(where))
