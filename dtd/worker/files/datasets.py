"""The data of a worker's job: found on this host or fetched from others, and served to them.

Before its code is loaded, the worker looks for each path of the job's `[data]`.  What is there is
hashed once and offered to others; what is not is copied into the cache from the workers that the
coordinator names (`dtd.worker.files.data_fetch`).  A chunk is kept through every interruption.

Runs on the job's thread; `open` on threads of the data port.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from dtd.datasets.cache import Cache, Content, Draft, path_of
from dtd.datasets.local import in_environment
from dtd.datasets.manifest import MAX_MANIFEST_BYTES, Manifest, first_difference, parse
from dtd.errors import DtdError, TaskError
from dtd.net.clients.blocking_link import Connect
from dtd.net.data_port.resources import Resource
from dtd.text.shown import shown_bytes
from dtd.wire import messages as m
from dtd.worker.control import Requests
from dtd.worker.files.data_fetch import DataFetch, SourceLink
from dtd.worker.files.data_offer import MANIFEST, PREFIX, Offer, all_chunks

log = structlog.get_logger()

ASK_EVERY_S: Final = 1.0
ASK_FIRST_EVERY_S: Final = 0.25
"""While no worker is known to have the data: others may read theirs, which ends at any moment."""


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
            content = cache.scans.content(path, self._progress)
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
            manifest = parse(link.read(MANIFEST, MAX_MANIFEST_BYTES))
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
        fetch = DataFetch(draft, by=self._by, connect=self._connect, progress=self._progress)
        self._offers[manifest.digest] = fetch.offer
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
