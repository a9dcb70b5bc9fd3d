"""Fetches the live state of other workers at the start of a generation.

Every donor holds the same state, so it is fetched in stripes from several at once, one thread and
one connection each, straight into the memory that the training run names.  If a donor is lost or
silent, the others deliver its part; when the ring of the generation breaks, all threads stop at
once.  Runs on the training thread, which sleeps meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from dtd.errors import DtdError, ErrorCode, ProtocolError, RequestRefused, RingBroken
from dtd.exchange.schedule.neighbours import CORRUPT, RESET, SILENT, UNREACHABLE
from dtd.net.addresses.routes import Routes
from dtd.net.clients.blocking_link import BlockingLink, Connect, connect_tcp, first_link
from dtd.net.clients.fetch_client import open_resource, unexpected
from dtd.net.data_port.fetch_server import MAX_REQUESTS_AHEAD
from dtd.planes import PLANES, PlaneCoder, check_coded
from dtd.wire import messages as m
from dtd.wire.session import DataCredential

if TYPE_CHECKING:  # torch is not loaded before a job begins
    from dtd.exchange.collective import RingCollective
    from dtd.train.run import JobSessionRunner

RANGE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Range:
    """A part of one blob."""

    blob: int
    offset: int
    length: int


class RangeScheduler:
    """Shared state of the thread that wants a state and those that fetch it.

    Attributes:
        views: memory of every blob, once it has been named.
    """

    def __init__(self, threads: int) -> None:
        self.views: Sequence[memoryview] = ()
        self._changed = threading.Condition()
        self._threads = threads
        self._links: set[BlockingLink] = set()
        self._manifest: bytes | None = None
        self._placed = False
        self._missing: deque[Range] = deque()
        self._lacking = 0
        self._over = False

    # --- the thread that wants the state -----------------------------------------------------

    def manifest(self) -> bytes | None:
        """Wait for the manifest; None when nobody is left to give it."""
        self._wait_for(lambda: self._manifest is not None or self._hopeless)
        return self._manifest

    def receive_into(self, views: Sequence[memoryview]) -> bool:
        """Wait until these are filled; False when nobody is left to fill them."""
        ranges = [
            Range(blob, offset, min(RANGE_BYTES, len(view) - offset))
            for blob, view in enumerate(views)
            for offset in range(0, len(view), RANGE_BYTES)
        ]
        with self._changed:
            self.views, self._placed = views, True
            self._missing.extend(ranges)
            self._lacking = len(ranges)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._lacking or self._hopeless)
            return not self._lacking

    def stop(self) -> None:
        """Let no thread begin another range, and cut its links; from any thread."""
        with self._changed:
            self._over = True
            links = tuple(self._links)
            self._changed.notify_all()
        for link in links:
            link.abort()

    def cut(self) -> None:
        """Stop, and wait until nobody touches the memory any more; it is let go of."""
        self.stop()
        self._wait_for(lambda: not self._links)
        self.views = ()  # the ring keeps `stop`, and so this object, until the generation ends

    @property
    def _hopeless(self) -> bool:
        return self._over or not self._threads

    # --- the threads that fetch ----------------------------------------------------------------

    @property
    def over(self) -> bool:
        return self._over

    def enter(self, link: BlockingLink) -> None:
        """A link is about to be used.

        Raises:
            DtdError: nothing is wanted any more.
        """
        with self._changed:
            if self._over:
                raise _not_wanted()
            self._links.add(link)

    def leave(self, link: BlockingLink, asked: Sequence[Range]) -> None:
        """A link will not be used any more, and these ranges have not come on it."""
        with self._changed:
            self._missing.extendleft(reversed(asked))
            self._links.discard(link)
            self._changed.notify_all()

    def end_thread(self) -> None:
        with self._changed:
            self._threads -= 1
            self._changed.notify_all()

    def agree(self, manifest: bytes) -> None:
        """A donor's manifest is here; wait for the memory of its blobs.

        Raises:
            ProtocolError: it is not the same as the first donor's.
            DtdError: nothing is wanted any more.
        """
        with self._changed:
            if self._manifest is None:
                self._manifest = manifest
                self._changed.notify_all()
            if manifest != self._manifest:
                raise ProtocolError(
                    ErrorCode.BAD_PAYLOAD, "its state is not the one that the first donor offered"
                )
            self._changed.wait_for(lambda: self._placed or self._over)
            if self._over:
                raise _not_wanted()

    def take(self, *, wait: bool) -> Range | None:
        """A range to ask for; None when there is none, after `wait` because all have come."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._missing or not self._lacking or self._over)
            return self._missing.popleft() if self._missing and not self._over else None

    def received(self) -> None:
        with self._changed:
            self._lacking -= 1
            if not self._lacking:
                self._changed.notify_all()

    def _wait_for(self, here: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(here)


def _not_wanted() -> DtdError:
    return DtdError("the state is no longer needed")


# --- the fetch itself ----------------------------------------------------------------------------


DONORS_AT_ONCE: Final = 4
"""More do not help: four senders fill one receiver's link; further donors stand by."""

BYTES_ASKED_AHEAD: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFigures:
    """Figures of a fetch; `donors` gave at least a part."""

    bytes: int
    seconds: float
    donors: tuple[str, ...]


def fetch_state(
    run: JobSessionRunner,
    donors: Sequence[m.Member],
    resource: str,
    *,
    by: str,
    entry: DataCredential,
    silence_s: float,
    ring: RingCollective,
    connect: Connect = connect_tcp,
    coded: bool = True,
    routes: Routes | None = None,
) -> FetchFigures:
    """Fetch `resource` from `donors` into the run.

    Args:
        run: receives it.
        donors: its holders, at least one.
        resource: "state/GENERATION".
        by: this worker's name.
        entry: what opens the donors' data ports.
        silence_s: a donor that sends not a byte for so long is given up.
        ring: cuts the fetch off when it breaks.
        connect: makes the connections.
        coded: donors may code what they send.
        routes: the addresses at which donors have answered.

    Raises:
        RingBroken: no donor is left, or the ring broke; what we held is unchanged.
        CheckpointError: the state is not one that this worker can load.
    """
    begun_s = time.monotonic()
    first = ring.rank % len(donors)  # joiners that come together begin with different donors
    fetch = _Fetch(
        [*donors[first:], *donors[:first]],
        resource,
        by=by,
        entry=entry,
        silence_s=silence_s,
        connect=connect,
        coding=PLANES if coded else 0,
        routes=routes or Routes(),
    )
    ring.on_broken(fetch.stripes.stop)
    size = fetch.into(run, ring)
    if size is None:
        if ring.why_broken:
            raise ring.broken()
        failure = fetch.failure()
        ring.give_up(failure.message)
        raise failure
    seconds = time.monotonic() - begun_s
    return FetchFigures(bytes=size, seconds=seconds, donors=tuple(sorted(fetch.gave)))


@dataclass(slots=True)
class _Lane:
    """Requests of one connection, in order: not answered yet, and on their way into memory."""

    asked: deque[Range] = field(default_factory=deque)
    coming: deque[Range] = field(default_factory=deque)
    coder: PlaneCoder = field(default_factory=PlaneCoder)
    open: int = 0
    open_bytes: int = 0


class _Fetch:
    """One fetch: its donors, its threads, and its failures."""

    def __init__(
        self,
        donors: Sequence[m.Member],
        resource: str,
        *,
        by: str,
        entry: DataCredential,
        silence_s: float,
        connect: Connect,
        coding: int,
        routes: Routes,
    ) -> None:
        self._coding = coding
        self._routes = routes
        self._count = min(DONORS_AT_ONCE, len(donors))
        self.stripes = RangeScheduler(self._count)
        self.gave: set[str] = set()
        self._donors = deque(donors)
        self._resource = resource
        self._by = by
        self._entry = entry
        self._connect = connect
        self._silence_s = silence_s
        self._failures: deque[RingBroken] = deque()

    def into(self, run: JobSessionRunner, ring: RingCollective) -> int | None:
        """Fill the run's memory; the bytes received, or None when that did not succeed."""
        try:
            for number in range(self._count):
                threading.Thread(target=self._work, name=f"fetch-{number}", daemon=True).start()
            with ring.waiting():
                manifest = self.stripes.manifest()
            if manifest is None:
                return None
            views = run.import_state(manifest)
            with ring.waiting():
                if not self.stripes.receive_into(views):
                    return None
        finally:
            self.stripes.cut()
        run.finish_import()
        return sum(map(len, views))

    def failure(self) -> RingBroken:
        """Return the first donor's failure, when all donors failed."""
        return self._failures[0] if self._failures else RingBroken("no donor delivered its state")

    # --- one thread for each donor at a time -------------------------------------------------

    def _work(self) -> None:
        try:
            while not self.stripes.over and (donor := self._next_donor()) is not None:
                if self._try(donor):
                    return
        finally:
            self.stripes.end_thread()

    def _next_donor(self) -> m.Member | None:
        try:
            return self._donors.popleft()
        except IndexError:
            return None

    def _try(self, donor: m.Member) -> bool:
        """Fetch from one donor until all is here; False when it failed."""
        lane = _Lane()
        link = None
        try:
            link, address = first_link(
                self._routes.addresses(donor),
                partial(
                    BlockingLink,
                    role=m.Role.FETCH,
                    name=self._by,
                    timeout_s=self._silence_s,
                    entry=self._entry,
                    connect=self._connect,
                    place=partial(self._place, lane),
                    coding=self._coding,
                    peer_name=donor.name,
                ),
            )
            self._routes.answered(donor, address)
            self.stripes.enter(link)
            _, manifest = open_resource(link, self._resource, silence_s=self._silence_s)
            self.stripes.agree(manifest)
            self._fetch(link, lane, donor.name)
        except (OSError, DtdError) as error:
            if not self.stripes.over:
                self._failures.append(_failure(donor.name, error, connected=link is not None))
            return False
        finally:
            if link is not None:
                link.close()
                self.stripes.leave(link, [*lane.coming, *lane.asked])
        return True

    def _fetch(self, link: BlockingLink, lane: _Lane, name: str) -> None:
        while True:
            self._ask(link, lane)
            if not lane.open:
                return
            message, payload = link.receive(silence_s=self._silence_s)
            if not isinstance(message, m.FetchData):
                raise unexpected(message)
            if message.plain_bytes:
                lane.coder.decode(payload, self._memory(lane.coming[0]), message.item_bytes)
            lane.open -= 1
            lane.open_bytes -= lane.coming.popleft().length
            self.gave.add(name)
            self.stripes.received()

    def _ask(self, link: BlockingLink, lane: _Lane) -> None:
        """Ask ahead, so that the donor never waits for a question; block only when none is open."""
        if lane.open > MAX_REQUESTS_AHEAD // 2:
            return
        questions = []
        while lane.open < MAX_REQUESTS_AHEAD and lane.open_bytes < BYTES_ASKED_AHEAD:
            part = self.stripes.take(wait=not lane.open)
            if part is None:
                break
            lane.open += 1
            lane.open_bytes += part.length
            lane.asked.append(part)
            questions.append(m.FetchRange(blob=part.blob, offset=part.offset, length=part.length))
        if questions:
            with contextlib.suppress(ConnectionError):  # why it was closed is yet to be received
                link.send(*questions)

    def _place(self, lane: _Lane, message: m.Message, payload_bytes: int) -> memoryview | None:
        """Memory of the part that was asked for first; None if what comes is its code."""
        if not isinstance(message, m.FetchData):
            return None
        if message.plain_bytes:
            check_coded(payload_bytes, message.plain_bytes, message.item_bytes)
        answer = Range(message.blob, message.offset, message.plain_bytes or payload_bytes)
        if not lane.asked or answer != lane.asked[0]:
            raise unexpected(message)
        lane.coming.append(lane.asked.popleft())
        return None if message.plain_bytes else self._memory(answer)

    def _memory(self, part: Range) -> memoryview:
        return self.stripes.views[part.blob][part.offset : part.offset + part.length]


def _failure(donor: str, error: OSError | DtdError, *, connected: bool) -> RingBroken:
    """Return the evidence that a donor's failure gives about its link; a refusal gives none."""
    suspect = donor
    if isinstance(error, RequestRefused):
        suspect, evidence = "", ""
    elif not connected:
        evidence = UNREACHABLE
    elif isinstance(error, TimeoutError):
        evidence = SILENT
    elif isinstance(error, ProtocolError) and error.code is not ErrorCode.TRUNCATED:
        evidence = CORRUPT
    else:
        evidence = RESET
    text = "it sent nothing for too long" if isinstance(error, TimeoutError) else str(error)
    message = f"the state could not be fetched from {donor}: {text}"
    return RingBroken(message, suspect=suspect, evidence=evidence)
