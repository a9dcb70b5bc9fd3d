"""The data of a worker's job: found on this host or fetched from others, and served to them.

Before its code is loaded, the worker looks for each path of the job's `[data]`.  What is there is
hashed once and offered to others; what is not is copied into the cache from the workers that the
coordinator names, from several at once (`dtd.datasets.plan`), among them those that are fetching it
themselves.  A chunk is verified before it is kept, and kept through every interruption.

Runs on the job's thread, with a thread for each source; `open` on threads of the data port.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from dtd.datasets.cache import Cache, Content, Draft, path_of
from dtd.datasets.local import in_environment
from dtd.datasets.manifest import CHUNK_BYTES, MAX_MANIFEST_BYTES, Manifest, first_difference, parse
from dtd.datasets.plan import Plan
from dtd.errors import DtdError, ErrorCode, ProtocolError, TaskError
from dtd.net.attempts import addresses
from dtd.net.blocking_link import BlockingLink, Connect, first_link
from dtd.net.data_server import Blob, Resource
from dtd.net.fetch_client import open_resource, unexpected
from dtd.shown import shown_bytes
from dtd.wire import messages as m
from dtd.wire.session import DataCredential
from dtd.worker.control import Requests

log = structlog.get_logger()

PREFIX: Final = "data/"
ASK_EVERY_S: Final = 1.0
ASK_FIRST_EVERY_S: Final = 0.25
"""While no worker is known to have the data: others may read theirs, which ends at any moment."""
SILENCE_S: Final = 10.0
SOURCES_AT_ONCE: Final = 8
CHUNKS_AHEAD: Final = 3
"""Chunks asked of a source before the first one has come: its disk and the wire work at once."""
LOOK_EVERY_S: Final = 0.1
"""Pause between two looks at what a partial source has, while it has nothing that is wanted."""

_MANIFEST, _BITMAP, _CONTENT = range(3)
"""Blobs of the resource "data/DIGEST"."""


# --- what is offered -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Data that others may fetch; `bitmap` has a bit for each chunk that is here."""

    content: Content
    bitmap: bytes | bytearray

    def resource(self) -> Resource:
        """The blobs, as the data port serves them."""
        manifest = self.content.manifest
        encoded, bitmap = manifest.encoded, self.bitmap
        return Resource(
            manifest=b"",
            blobs=[
                Blob(
                    name="manifest",
                    size_bytes=len(encoded),
                    read=lambda offset, length: encoded[offset : offset + length],
                    in_memory=True,
                ),
                Blob(
                    name="chunks",
                    size_bytes=len(bitmap),
                    read=lambda offset, length: bytes(bitmap[offset : offset + length]),
                    in_memory=True,
                ),
                Blob(name="content", size_bytes=manifest.size_bytes, read=self._read),
            ],
        )

    def _read(self, offset: int, length: int) -> bytes:
        chunks = range(offset // CHUNK_BYTES, -(-(offset + length) // CHUNK_BYTES))
        if not all(self.bitmap[one // 8] >> one % 8 & 1 for one in chunks):
            raise OSError("these bytes are not here yet")
        return self.content.read(offset, length)


def all_chunks(manifest: Manifest) -> bytes:
    """The bitmap of complete data."""
    return b"\xff" * -(-len(manifest.chunks) // 8)


# --- a source ------------------------------------------------------------------------------------


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
        self._placed: deque[m.FetchRange] = deque()
        entry = DataCredential(
            secret=source.ticket_key, scope=resource, expires_s=source.ticket_expires_s
        )
        self._link, _ = first_link(
            addresses(source),
            lambda address, connect: BlockingLink(
                address,
                role=m.Role.FETCH,
                name=by,
                timeout_s=SILENCE_S,
                entry=entry,
                place=self._place,
                connect=connect,
                peer_name=source.name,
            ),
            connect,
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
        self._placed.popleft()
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
        self._placed.append(self._asked.popleft())
        self._spare.append(self._spare.pop(0))
        return memoryview(self._spare[-1])[:payload_bytes]


# --- the fetch of one set of data ----------------------------------------------------------------


class DataFetch:
    """Chunks of data on their way to this worker, with a thread for each source.

    Args:
        draft: gets the chunks.
        bitmap: of the chunks that are here; kept up to date.
        by: this worker's name.
        connect: opens connections.
        progress: called as chunks come.
    """

    def __init__(
        self,
        draft: Draft,
        bitmap: bytearray,
        *,
        by: str,
        connect: Connect,
        progress: Callable[[], None],
    ) -> None:
        self._draft, self._bitmap = draft, bitmap
        self._manifest = draft.content.manifest
        self._digest = self._manifest.digest
        self._by, self._connect, self._progress = by, connect, progress
        self._plan = Plan(len(self._manifest.chunks), draft.have)
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
        return min(len(self._plan.have) * CHUNK_BYTES, self._manifest.size_bytes)

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
                self._plan.holds(source.name, None if source.complete else set())
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
                link.ask(_CONTENT, chunk * CHUNK_BYTES, length)
            if asked:
                self._keep(asked.popleft(), link.receive(), source.name)
                continue
            with self._changed:
                self._changed.wait(LOOK_EVERY_S)
            if not source.complete:
                held = _chunks(link.read(_BITMAP, len(self._bitmap)), len(self._manifest.chunks))
                with self._changed:
                    self._plan.holds(source.name, held)

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
            self._bitmap[chunk // 8] |= 1 << chunk % 8
            self._plan.received(chunk)
            self.gave.add(source)
            self._changed.notify_all()
        self._progress()


def _chunks(bitmap: bytes, chunks: int) -> set[int]:
    return {one for one in range(chunks) if bitmap[one // 8] >> one % 8 & 1}


# --- all data of the job -------------------------------------------------------------------------


class JobData:
    """The data of this process's job.

    Args:
        place: the directory of copies.
        limit_bytes: most bytes of all of them.
        by: this worker's name.
        requests: asks the coordinator, from the job's thread.
        tell: sends to the coordinator, on the event loop.

    Attributes:
        doing: what the worker waits for, in words; empty when it has all.
    """

    def __init__(
        self,
        place: Path,
        limit_bytes: int,
        *,
        by: str,
        requests: Requests,
        tell: Callable[[m.Message], None],
    ) -> None:
        self.doing = ""
        self._place, self._limit_bytes = place, limit_bytes
        self._by, self._requests, self._tell = by, requests, tell
        self._offers: dict[str, Offer] = {}
        self._told: dict[str, m.GetData] = {}
        self._copied: list[str] = []
        self._connect: Connect
        self._progress: Callable[[], None]

    # --- for other workers -------------------------------------------------------------------

    def open(self, resource: str) -> Resource:
        """The data of this job that are here, as others may fetch them; from any thread.

        Raises:
            TaskError: they are not of this job, or not here.
        """
        offer = self._offers.get(resource.removeprefix(PREFIX))
        if offer is None:
            raise TaskError(f"{resource} is not here, or not of this worker's job")
        return offer.resource()

    def tell_again(self) -> None:
        """Repeat what is here, to a coordinator that may not know it; on the event loop."""
        for told in tuple(self._told.values()):
            self._tell(told)

    # --- on the job's thread -----------------------------------------------------------------

    def bring(
        self,
        job: str,
        wanted: Mapping[str, str],
        *,
        connect: Connect,
        progress: Callable[[], None],
    ) -> list[str]:
        """Return when all data are on this host; `dtd.data_path` then has their paths.

        Args:
            job: id of the job.
            wanted: paths of its data by their names.
            connect: opens connections to other workers.
            progress: called as it advances, and while it waits.

        Returns:
            For each copy that was fetched its size, its sources and the time that it took.

        Raises:
            TaskError: they differ from those of another host, cannot be read, or have no room.
        """
        self._copied.clear()
        if not wanted:
            return []
        self._connect, self._progress = connect, progress
        cache = Cache(self._place, self._limit_bytes)
        contents: dict[str, Content] = {}
        try:
            for name, path in wanted.items():
                with _named(name, path):
                    here = self._here(job, name, Path(path), cache)
                if here is not None:
                    contents[name] = here
            for name, path in wanted.items():
                if name not in contents:
                    with _named(name, path):
                        contents[name] = self._fetched(name, path, cache)
        finally:
            self.doing = ""
        paths = {name: path_of(content) for name, content in contents.items()}
        os.environ.update(in_environment(paths))
        return self._copied

    def _here(self, job: str, name: str, path: Path, cache: Cache) -> Content | None:
        """The data, if they are at their path or in the cache; the coordinator is told."""
        self.doing = f"data {name}: reading {path}"
        nothing = m.GetData(job=job, name=name)
        try:
            content = cache.original(path, self._progress)
        except (FileNotFoundError, NotADirectoryError) as error:
            if path.exists():
                raise TaskError(
                    f"{error.filename} is a link to nothing, or was just removed",
                    remedy="remove the link, or submit the job when the data are complete",
                ) from None
            digest = self._ask(nothing).digest
            copy = cache.copy(digest, self._progress) if digest else None
            if copy is not None:
                self._offer(copy, nothing)
            return copy
        found = self._offer(content, nothing)
        if found.digest not in ("", content.manifest.digest):
            raise self._differ(path, content.manifest, found)
        return content

    def _offer(self, content: Content, nothing: m.GetData) -> m.DataSources:
        """Offer complete data to others."""
        manifest = content.manifest
        self._offers[manifest.digest] = Offer(content=content, bitmap=all_chunks(manifest))
        size = manifest.size_bytes
        log.info("data_offered", data=nothing.name, bytes=size, digest=manifest.digest)
        return self._ask(replace(nothing, digest=manifest.digest, have_bytes=size, size_bytes=size))

    def _ask(self, told: m.GetData, *, timeout_s: float | None = None) -> m.DataSources:
        self._told[told.name] = told
        found, _ = self._requests.ask(told, timeout_s=timeout_s)
        assert isinstance(found, m.DataSources), "the answer to GET_DATA"
        return found

    def _differ(self, path: Path, own: Manifest, found: m.DataSources) -> TaskError:
        remedy = (
            "make the files equal, or leave them on one host: the others fetch them; a job that"
            " has begun keeps its data"
        )
        for source in found.sources:
            with contextlib.suppress(OSError, DtdError):
                other = self._manifest_of(source, found.digest)
                where = first_difference(own, other)
                return TaskError(
                    f"{path} on {self._by} is not the same as on {source.name}: it differs in"
                    f" {where}",
                    remedy=remedy,
                )
        return TaskError(
            f"{path} on {self._by} is not the same as what the job has begun with", remedy=remedy
        )

    def _manifest_of(self, source: m.DataSource, digest: str) -> Manifest:
        link = SourceLink(source, digest, by=self._by, connect=self._connect)
        with contextlib.closing(link):
            manifest = parse(link.read(_MANIFEST, MAX_MANIFEST_BYTES))
        if manifest.digest != digest:
            raise TaskError(f"{source.name} has delivered another manifest")
        return manifest

    def _fetched(self, name: str, path: str, cache: Cache) -> Content:
        """The data, copied from other workers."""
        manifest = self._first_manifest(name, path)
        same = self._offers.get(manifest.digest)
        if same is not None:  # data of another name are equal
            self._offer(same.content, self._told[name])
            return same.content
        began_s = time.monotonic()
        draft = cache.draft(manifest, in_use=[*self._offers], progress=self._progress)
        try:
            gave = self._fetch(name, draft)
            cache.publish(draft)
        except BaseException:
            self._offers.pop(manifest.digest, None)
            draft.close()
            raise
        size = manifest.size_bytes
        complete = replace(self._told[name], digest=manifest.digest)
        self._ask(replace(complete, have_bytes=size, size_bytes=size))
        seconds = round(time.monotonic() - began_s, 3)
        log.info("data_received", data=name, bytes=size, seconds=seconds, sources=sorted(gave))
        sources = ", ".join(sorted(gave)) or "an earlier fetch"
        self._copied.append(
            f"data {name}: copied {shown_bytes(size)} from {sources} in {seconds:.1f} s"
        )
        return draft.content

    def _first_manifest(self, name: str, path: str) -> Manifest:
        """The manifest, from the first worker that delivers it; waits for one."""
        while True:
            found = self._ask(self._told[name])
            for source in found.sources:
                try:
                    return self._manifest_of(source, found.digest)
                except (OSError, DtdError) as error:
                    log.info("data_source_lost", source=source.name, error=str(error))
            self.doing = f"data {name}: waiting for a worker that has {path}"
            self._progress()
            time.sleep(ASK_FIRST_EVERY_S)

    def _fetch(self, name: str, draft: Draft) -> set[str]:
        manifest = draft.content.manifest
        bitmap = bytearray(len(all_chunks(manifest)))
        for chunk in draft.have:
            bitmap[chunk // 8] |= 1 << chunk % 8
        self._offers[manifest.digest] = Offer(content=draft.content, bitmap=bitmap)
        fetch = DataFetch(
            draft, bitmap, by=self._by, connect=self._connect, progress=self._progress
        )
        size = manifest.size_bytes
        told = replace(self._told[name], digest=manifest.digest, size_bytes=size)
        try:
            while not fetch.wait(0):
                with contextlib.suppress(TimeoutError):  # the coordinator is not needed meanwhile
                    told = replace(told, have_bytes=fetch.have_bytes)
                    fetch.use(self._ask(told, timeout_s=ASK_EVERY_S))
                fetch.wait(ASK_EVERY_S)
                waits = "; waiting for a worker that has the rest" if fetch.lacks_source else ""
                have = shown_bytes(fetch.have_bytes)
                self.doing = f"data {name}: {have} of {shown_bytes(size)}{waits}"
                self._progress()
        finally:
            fetch.close()
        return fetch.gave


@contextlib.contextmanager
def _named(name: str, path: str) -> Iterator[None]:
    """Errors name the data they are about."""
    try:
        yield
    except TaskError as error:
        raise TaskError(f"data {name}: {error.message}", remedy=error.remedy) from None
    except OSError as error:
        raise TaskError(
            f"data {name}: {error.filename or path}: {error.strerror or error}",
            remedy="let the worker's user read it, or free space in its state directory",
        ) from None
