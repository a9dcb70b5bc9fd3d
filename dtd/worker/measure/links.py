"""Links from other workers: how fast they are (MEASURE), and whether they work at all (PROBE).

A link is measured by fetching zeros through the other worker's data port, as a state would be:
small ranges one by one for the latency, large ones with several ahead for the bandwidth; both are
bounded.  A probe fetches as many zeros as a chunk of a bucket may have: there are paths that pass
small packets and lose large ones, and a WELCOME would come through those.  Both ends of a link
probe, so both directions carry a payload.  What a broken link is worth is decided by the
coordinator.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import structlog

from dtd import diagnostics
from dtd.address import Address
from dtd.diagnostics import Diagnostic
from dtd.errors import DtdError
from dtd.net.addresses.routes import addresses
from dtd.net.clients.blocking_link import BlockingLink, first_link
from dtd.net.clients.fetch_client import open_resource
from dtd.net.data_port.fetch_server import MAX_REQUESTS_AHEAD
from dtd.net.data_port.resources import PROBE_SCOPE
from dtd.wire import messages as m
from dtd.wire.session import DataCredential

log = structlog.get_logger()

ROUND_TRIPS: Final = 20
LINK_TIMEOUT_S: Final = 3.0
OTHER_TIMEOUT_S: Final = 1.0
"""For addresses of which one is used already, so that seven dead ends end in time."""
TRANSFER_S: Final = 0.5
TRANSFER_BYTES: Final = 32 * 1024 * 1024
LEAST_RANGE_BYTES: Final = 64 * 1024
MOST_RANGE_BYTES: Final = 1024 * 1024
RANGE_S: Final = 0.01
"""A range takes about so long, so that one more than the time allows costs little."""
PROBE_BYTES: Final = 256 * 1024
"""More than any path carries in one packet, whatever a network card puts together."""

MOST_S: Final = 30.0
"""A link that is slower than PROBE_BYTES in this time is no link for training."""


def _open_link(
    message: m.Measure | m.Probe, to: Sequence[Address], by: str, timeout_s: float
) -> tuple[BlockingLink, Address]:
    """Call the worker that `message` names at one of these addresses; what it sends is dropped."""
    scratch = memoryview(bytearray(MOST_RANGE_BYTES))
    entry = DataCredential(
        secret=message.ticket_key, scope=PROBE_SCOPE, expires_s=message.ticket_expires_s
    )
    open_at = functools.partial(
        BlockingLink,
        role=m.Role.FETCH,
        name=by,
        timeout_s=timeout_s,
        entry=entry,
        place=lambda _message, size: scratch[:size] if 0 < size <= len(scratch) else None,
        peer_name=message.name,
    )
    return first_link(to, open_at)


def link_figures(message: m.Measure, by: str) -> dict[str, Any]:
    """Figures of the direction from the other worker to this one; runs in a thread."""
    link, address = _open_link(message, addresses(message), by, LINK_TIMEOUT_S)
    with contextlib.closing(link):
        open_resource(link, PROBE_SCOPE, timeout_s=LINK_TIMEOUT_S)
        figures = {
            "host": address.host,
            "rtt_s": _round_trip_s(link),
            "same_host": link.is_same_host,
        }
        if message.what == "latency":
            return figures
        figures["bytes_per_s"] = _bytes_per_s(link)
    if not figures["same_host"]:
        figures["others"] = _other_rates(message, address, by)
    return figures


def _other_rates(message: m.Measure, used: Address, by: str) -> dict[str, float]:
    """Rates of the peer's other addresses, in bytes a second, by host; dead ends are left out."""
    rates = {}
    for one in addresses(message):
        if one == used:
            continue
        with contextlib.suppress(OSError, DtdError):
            link, _ = _open_link(message, [one], by, OTHER_TIMEOUT_S)
            with contextlib.closing(link):
                open_resource(link, PROBE_SCOPE, timeout_s=OTHER_TIMEOUT_S)
                rates[one.host] = _bytes_per_s(link)
    return rates


def _round_trip_s(link: BlockingLink) -> float:
    """Median of small requests and their answers."""
    return statistics.median(_fetch_s(link, 1) for _ in range(ROUND_TRIPS))


def _fetch_s(link: BlockingLink, length: int) -> float:
    begun_s = time.perf_counter()
    link.send(m.FetchRange(blob=0, offset=0, length=length))
    link.receive(timeout_s=LINK_TIMEOUT_S)
    return time.perf_counter() - begun_s


def _bytes_per_s(link: BlockingLink) -> float:
    """Rate of a transfer that is bounded in time and bytes, once it is under way.

    Ranges grow while one arrives within `RANGE_S` of the one before.  So on a fast link with a long
    way enough of them are on it, and on a slow link none takes long.
    """
    length, left = LEAST_RANGE_BYTES, TRANSFER_BYTES
    asked = deque([length] * (MAX_REQUESTS_AHEAD // 2))
    link.send(*[_range(length) for length in asked])
    link.receive(timeout_s=LINK_TIMEOUT_S)
    asked.popleft()
    until_s = time.perf_counter() + TRANSFER_S
    begun_s, got = time.perf_counter(), 0
    while asked:
        came_s = time.perf_counter()
        if left >= length and came_s < until_s:
            link.send(_range(length))
            asked.append(length)
            left -= length
        link.receive(timeout_s=LINK_TIMEOUT_S)
        got += asked.popleft()
        if asked and length < MOST_RANGE_BYTES and time.perf_counter() - came_s < RANGE_S:
            length *= 2
            begun_s, got = time.perf_counter(), 0
    return got / (time.perf_counter() - begun_s)


def _range(length: int) -> m.FetchRange:
    return m.FetchRange(blob=0, offset=0, length=length)


def probe(message: m.Probe, *, by: str, timeout_s: float) -> m.Probed:
    """Call the worker that `message` names, and fetch something from it; blocking."""
    greeted, reason = False, ""
    try:
        link, _ = _open_link(message, addresses(message), by, timeout_s)
        with contextlib.closing(link):
            greeted = True
            _fetch_zeros(link, timeout_s)
    except TimeoutError:
        reason = f"no answer within {timeout_s:g} s"
        if greeted:
            reason = f"it answers, but {PROBE_BYTES >> 10} KiB do not arrive: {reason}"
    except OSError as error:
        reason = error.strerror or str(error)
    except DtdError as error:
        reason = str(error)
    return m.Probed(name=message.name, reachable=not reason, reason=reason, greeted=greeted)


def _fetch_zeros(link: BlockingLink, silence_s: float) -> None:
    """Wait for the payload as long as more of it comes."""
    open_resource(link, PROBE_SCOPE, timeout_s=MOST_S, silence_s=silence_s)
    link.send(m.FetchRange(blob=0, offset=0, length=PROBE_BYTES))
    link.receive(timeout_s=MOST_S, silence_s=silence_s)
    link.send(m.Goodbye())


class PeerDiagnostics:
    """The workers that probes have not reached; a cluster has at most `MAX_WORLD` of them."""

    def __init__(self) -> None:
        self._unreached: dict[str, Diagnostic] = {}

    @property
    def first(self) -> Diagnostic | None:
        """The one that has lasted longest."""
        return next(iter(self._unreached.values()), None)

    def probed(self, probe: m.Probe, answer: m.Probed) -> None:
        """A worker was called; a failure is logged when it is news."""
        known = self._unreached.pop(probe.name, None)
        if answer.reachable:
            return
        where = " or ".join(map(str, addresses(probe)))
        tell = diagnostics.data_port_narrow if answer.greeted else diagnostics.data_port_closed
        diagnostic = tell(probe.name, where, answer.reason)
        self._unreached[probe.name] = diagnostic
        while len(self._unreached) > m.MAX_WORLD:
            del self._unreached[next(iter(self._unreached))]
        if known != diagnostic:
            log.warning(
                "peer_unreachable",
                peer=probe.name,
                address=where,
                message=diagnostic.message,
                remedy=diagnostic.remedy,
            )

    def forget(self) -> None:
        """A ring stands: all its workers are reached."""
        self._unreached.clear()
