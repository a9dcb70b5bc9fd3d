"""The fetch of one set of data from several workers at once, those that fetch it too among them.

Which chunk is asked of which source is decided in `dtd.datasets.plan`.  A chunk is verified before
it is kept.  A thread for each source; the job's thread says who they are, and waits.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from dtd.datasets.cache import Draft
from dtd.datasets.manifest import CHUNK_BYTES
from dtd.datasets.plan import Plan
from dtd.errors import DtdError, ErrorCode, ProtocolError, TaskError
from dtd.net.addresses.routes import addresses
from dtd.net.clients.blocking_link import BlockingLink, Connect, first_link
from dtd.net.clients.fetch_client import open_resource, unexpected
from dtd.wire import messages as m
from dtd.wire.session import DataCredential
from dtd.worker.files.data_offer import BITMAP, CONTENT, PREFIX, Offer, all_chunks, mark

log = structlog.get_logger()

SILENCE_S: Final = 10.0
SOURCES_AT_ONCE: Final = 8
CHUNKS_AHEAD: Final = 3
"""Chunks asked of a source before the first one has come: its disk and the wire work at once."""
LOOK_EVERY_S: Final = 0.1
"""Longest pause between two looks at what a partial source has, while it has nothing that is
wanted: each look is a bit for each chunk on the wire."""
LOOKS: Final = 1024
"""As many parts of all chunks: one that has come from other sources ends the pause."""


class SourceLink:
    """An open connection to a worker that has data, or some of them.

    Args:
        source: the worker.
        digest: of the data.
        by: this worker's name.
        connect: opens the connection.

    Raises:
        OSError, DtdError: it cannot be opened.
    """

    def __init__(self, source: m.DataSource, digest: str, *, by: str, connect: Connect) -> None:
        resource = f"{PREFIX}{digest}"
        self._spare = [bytearray(CHUNK_BYTES) for _ in range(CHUNKS_AHEAD)]
        self._asked: deque[m.FetchRange] = deque()
        entry = DataCredential(
            secret=source.ticket_key, scope=resource, expires_s=source.ticket_expires_s
        )
        self._link, _ = first_link(
            addresses(source),
            partial(
                BlockingLink,
                role=m.Role.FETCH,
                name=by,
                timeout_s=SILENCE_S,
                entry=entry,
                place=self._place,
                connect=connect,
                peer_name=source.name,
            ),
        )
        try:
            blobs, _ = open_resource(self._link, resource, silence_s=SILENCE_S)
        except BaseException:
            self.close()
            raise
        self.sizes = [blob.size_bytes for blob in blobs]

    def ask(self, blob: int, offset: int, length: int) -> None:
        """Ask for a range; at most `CHUNKS_AHEAD` are open at a time."""
        request = m.FetchRange(blob=blob, offset=offset, length=length)
        self._asked.append(request)
        with contextlib.suppress(ConnectionError):  # why it was closed is yet to be received
            self._link.send(request)

    def receive(self) -> memoryview:
        """The range that was asked for first; its memory is used again by a later one."""
        message, payload = self._link.receive(silence_s=SILENCE_S)
        if not isinstance(message, m.FetchData):
            raise unexpected(message)
        return payload

    def read(self, blob: int, limit_bytes: int) -> bytes:
        """A whole small blob."""
        size = self.sizes[blob] if blob < len(self.sizes) else limit_bytes + 1
        if size > limit_bytes:
            raise ProtocolError(ErrorCode.BAD_PAYLOAD, f"{size} bytes of it are too many")
        content = bytearray()
        while len(content) < size:
            self.ask(blob, len(content), min(CHUNK_BYTES, size - len(content)))
            content += self.receive()
        return bytes(content)

    def abort(self) -> None:
        """End what is under way, from another thread."""
        self._link.abort()

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def _place(self, message: m.Message, payload_bytes: int) -> memoryview | None:
        if not isinstance(message, m.FetchData):
            return None
        answer = m.FetchRange(blob=message.blob, offset=message.offset, length=payload_bytes)
        if not self._asked or answer != self._asked[0]:
            raise unexpected(message)
        self._asked.popleft()
        self._spare.append(self._spare.pop(0))
        return memoryview(self._spare[-1])[:payload_bytes]


class DataFetch:
    """Chunks of data on their way to this worker, with a thread for each source.

    Args:
        draft: gets the chunks.
        by: this worker's name.
        connect: opens connections.
        progress: called as chunks come.

    Attributes:
        offer: what is here meanwhile, for others.
        gave: the workers that have delivered any.
    """

    def __init__(
        self,
        draft: Draft,
        *,
        by: str,
        connect: Connect,
        progress: Callable[[], None],
    ) -> None:
        self._draft = draft
        self._manifest = draft.content.manifest
        self._bitmap = bytearray(len(all_chunks(self._manifest)))
        for chunk in draft.have:
            mark(self._bitmap, chunk)
        self.offer = Offer(content=draft.content, bitmap=self._bitmap)
        self._digest = self._manifest.digest
        self._by, self._connect, self._progress = by, connect, progress
        self._plan = Plan(len(self._manifest.chunks), int.from_bytes(self._bitmap, "little"))
        self._news = len(self._manifest.chunks) // LOOKS + 1
        self._changed = threading.Condition()
        self._threads: dict[str, threading.Thread] = {}
        self._links: set[SourceLink] = set()
        self._spoilt: dict[str, str] = {}
        self._failure: TaskError | None = None
        self._over = False
        self.gave: set[str] = set()

    @property
    def have_bytes(self) -> int:
        """Bytes of the chunks that are here."""
        return min(self._plan.have.bit_count() * CHUNK_BYTES, self._manifest.size_bytes)

    @property
    def lacks_source(self) -> bool:
        """Whether no source has any of what is missing."""
        with self._changed:
            return self._plan.stalled

    def use(self, found: m.DataSources) -> None:
        """Fetch from these workers from now on."""
        with self._changed:
            self._plan.share_out(found.share, found.shares)
            for source in found.sources:
                thread = self._threads.get(source.name)
                if source.name in self._spoilt or (thread is not None and thread.is_alive()):
                    continue
                if sum(one.is_alive() for one in self._threads.values()) >= SOURCES_AT_ONCE:
                    break
                thread = threading.Thread(
                    target=self._work, args=(source,), name="data", daemon=True
                )
                self._threads[source.name] = thread
                thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait for all chunks; whether they are here.

        Raises:
            TaskError: they cannot be kept, or those that have them have others by now.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._plan.complete or self._failure, timeout_s)
            if self._failure is None and self._spoilt and self._plan.stalled:
                self._failure = TaskError(
                    "; ".join(self._spoilt.values()),
                    remedy="put the files back as they were, or submit the job again",
                )
            if self._failure is not None:
                raise self._failure
            return self._plan.complete

    def close(self) -> None:
        """Stop, and wait until nobody writes any more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
            links = tuple(self._links)
        for link in links:
            link.abort()
        for thread in self._threads.values():
            thread.join()

    # --- the thread of a source --------------------------------------------------------------

    def _work(self, source: m.DataSource) -> None:
        link = None
        try:
            link = SourceLink(source, self._digest, by=self._by, connect=self._connect)
            if link.sizes != [
                len(self._manifest.encoded),
                len(self._bitmap),
                self._manifest.size_bytes,
            ]:
                raise ProtocolError(ErrorCode.BAD_PAYLOAD, "its data have another size")
            with self._changed:
                self._links.add(link)
                self._plan.holds(source.name, None if source.complete else 0)
            self._fetch(link, source)
        except (OSError, DtdError) as error:
            if not self._over:
                log.info("data_source_lost", source=source.name, error=str(error))
        finally:
            with self._changed:
                self._plan.lost(source.name)
                self._links.discard(link)
                self._changed.notify_all()
            if link is not None:
                link.close()

    def _fetch(self, link: SourceLink, source: m.DataSource) -> None:
        asked: deque[int] = deque()
        while not self._over and not self._plan.complete:
            while len(asked) < CHUNKS_AHEAD and (chunk := self._next(source.name)) is not None:
                asked.append(chunk)
                length = self._manifest.chunk_bytes(chunk)
                link.ask(CONTENT, chunk * CHUNK_BYTES, length)
            if asked:
                self._keep(asked.popleft(), link.receive(), source.name)
                continue
            self._pause()
            if not source.complete:
                bitmap = link.read(BITMAP, len(self._bitmap))
                with self._changed:
                    self._plan.holds(source.name, int.from_bytes(bitmap, "little"))

    def _pause(self) -> None:
        """Wait until a source that has nothing wanted may have some."""
        with self._changed:
            then = self._plan.have.bit_count() + self._news
            self._changed.wait_for(
                lambda: self._over or self._plan.complete or self._plan.have.bit_count() >= then,
                LOOK_EVERY_S,
            )

    def _next(self, source: str) -> int | None:
        with self._changed:
            return self._plan.next(source)

    def _keep(self, chunk: int, data: memoryview, source: str) -> None:
        if not self._draft.content.verifies(chunk, data):
            paths = [piece.path for piece in self._manifest.pieces(chunk * CHUNK_BYTES, len(data))]
            self._spoilt[source] = f"{paths[0]} on {source} is not as it was when it was hashed"
            raise ProtocolError(ErrorCode.BAD_PAYLOAD, self._spoilt[source])
        try:
            self._draft.add(chunk, data)
        except OSError as error:
            self._failure = TaskError(
                f"a copy cannot be written: {error.strerror}", remedy="free space there"
            )
            raise
        with self._changed:
            mark(self._bitmap, chunk)
            self._plan.received(chunk)
            self.gave.add(source)
            self._changed.notify_all()
        self._progress()
