"""Data of a job come from several workers, whatever happens to these in the middle."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtd.address import Address
from dtd.datasets.cache import Cache, Content
from dtd.datasets.local import VARIABLE, data_path
from dtd.datasets.manifest import CHUNK_BYTES, Manifest
from dtd.errors import TaskError
from dtd.net.clients.blocking_link import connect_tcp
from dtd.net.data_port.data_server import DataServer
from dtd.net.data_port.resources import Resource
from dtd.wire import messages as m
from dtd.wire.data_keys import ticket_key
from dtd.worker.files.data_offer import Offer, all_chunks
from dtd.worker.files.datasets import JobData
from tests.unit.conftest import LoopThread

SECRET = b"w" * 32
NEVER_S = 1 << 40
CHUNKS = 6


class Flaky:
    """Content that cannot be read any more after so many reads."""

    def __init__(self, content: Content, reads: int) -> None:
        self.manifest: Manifest = content.manifest
        self.reads: list[int] = []
        self._content, self._most = content, reads

    def read(self, offset: int, length: int) -> bytes:
        if len(self.reads) >= self._most:
            raise OSError("the disk has failed")
        self.reads.append(offset // CHUNK_BYTES)
        return self._content.read(offset, length)


class Watched(bytearray):
    """A bitmap that counts how often others ask for it."""

    looks = 0

    def __getitem__(self, which: Any) -> Any:
        self.looks += isinstance(which, slice)
        return super().__getitem__(which)


class Source:
    """A worker with data, or with those whose bits are set."""

    def __init__(
        self, loop_thread: LoopThread, name: str, content: Any, bitmap: bytes | bytearray = b""
    ) -> None:
        self.name, self.content = name, content
        self._offer = Offer(content=content, bitmap=bitmap or all_chunks(content.manifest))
        self._complete = not bitmap
        self.server, self._address = loop_thread.run(self._listen())

    async def _listen(self) -> tuple[DataServer, Address]:
        server = DataServer(self.name, self._open)
        server.worker_secret = SECRET
        return server, await server.listen(Address("127.0.0.1", 0))

    def _open(self, resource: str) -> Resource:
        assert resource == f"data/{self.content.manifest.digest}"
        return self._offer.resource()

    @property
    def told(self) -> m.DataSource:
        scope = f"data/{self.content.manifest.digest}"
        return m.DataSource(
            name=self.name,
            host=self._address.host,
            port=self._address.port,
            complete=self._complete,
            ticket_expires_s=NEVER_S,
            ticket_key=ticket_key(SECRET, scope, NEVER_S),
        )


class Answers:
    """The coordinator, which names other sources each time; the last ones for ever."""

    def __init__(self, digest: str, *sources: list[Source]) -> None:
        self.asked: list[m.GetData] = []
        self._digest = digest
        self._sources = [*sources]

    def ask(self, told: m.GetData, *, timeout_s: float | None = None) -> tuple[Any, bytes]:
        del timeout_s
        self.asked.append(told)
        sources = self._sources.pop(0) if len(self._sources) > 1 else self._sources[0]
        return m.DataSources(
            job=told.job,
            name=told.name,
            digest=self._digest if sources else "",
            sources=tuple(one.told for one in sources),
        ), b""


@pytest.fixture
def original(tmp_path: Path) -> Content:
    """Data of several chunks."""
    place = tmp_path / "original"
    place.mkdir()
    (place / "large").write_bytes(os.urandom((CHUNKS - 1) * CHUNK_BYTES))
    (place / "small").write_bytes(b"12")
    return Cache(tmp_path / "other", 1 << 30).scans.content(place, lambda: None)


def brought(tmp_path: Path, answers: Answers, path: str = "/nowhere/x") -> Path:
    """The path of the data on the worker that fetches them."""
    data = JobData(
        tmp_path / "cache", 1 << 30, by="worker-9", requests=answers, tell=queue.SimpleQueue().put
    )
    data.bring("j", {"x": path}, connect=connect_tcp, progress=lambda: None)
    return data_path("x")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator is asked often; what a job leaves in the environment ends with its test."""
    monkeypatch.setenv(VARIABLE, "{}")
    monkeypatch.setattr("dtd.worker.files.datasets.ASK_EVERY_S", 0.05)


@pytest.fixture
def source(loop_thread: LoopThread) -> Iterator[Callable[..., Source]]:
    """Makes sources."""
    made: list[Source] = []

    def make(name: str, content: Any, bitmap: bytes | bytearray = b"") -> Source:
        made.append(Source(loop_thread, name, content, bitmap))
        return made[-1]

    yield make
    for one in made:
        loop_thread.call(one.server.close)


def same(one: Path, content: Content) -> bool:
    names = [path for path, _ in content.manifest.files]
    return all((one / name).read_bytes() == (content.root / name).read_bytes() for name in names)


def test_data_come_from_complete_and_partial_sources(source, original, tmp_path):
    partial = source("part", Flaky(original, 100), bitmap=b"\x0f")
    whole = source("whole", Flaky(original, 100))
    answers = Answers(original.manifest.digest, [], [whole, partial])
    assert same(brought(tmp_path, answers), original)
    assert sorted({*whole.content.reads, *partial.content.reads}) == [*range(CHUNKS)]
    assert {4, 5} <= {*whole.content.reads}
    size = original.manifest.size_bytes
    assert answers.asked[0].digest == ""
    last = answers.asked[-1]
    assert (last.digest, last.have_bytes) == (original.manifest.digest, size)


def test_a_source_without_news_is_not_asked_again_for_each_chunk(
    source, original, tmp_path, monkeypatch
):
    monkeypatch.setattr("dtd.worker.files.data_fetch.LOOK_EVERY_S", 60.0)
    monkeypatch.setattr("dtd.worker.files.data_fetch.LOOKS", 2)
    bitmap = Watched(b"\0")
    sources = [source("whole", original), source("part", original, bitmap=bitmap)]
    assert same(brought(tmp_path, Answers(original.manifest.digest, sources)), original)
    assert bitmap.looks <= 2  # after two thirds of the chunks, and after all


def test_another_source_goes_on_where_one_was_lost(source, original, tmp_path):
    first = source("first", Flaky(original, 2))
    second = source("second", Flaky(original, 100))
    # The first one delivers the manifest, then two chunks.
    answers = Answers(original.manifest.digest, [first], [first], [first], [first], [second])
    assert same(brought(tmp_path, answers), original)
    assert {*first.content.reads, *second.content.reads} == {*range(CHUNKS)}
    assert len({*second.content.reads}) == len(second.content.reads)


def test_files_that_have_changed_since_they_were_hashed_are_named(source, original, tmp_path):
    first = source("first", Flaky(original, 100))
    (original.root / "large").write_bytes(
        (original.root / "large").read_bytes()[:-CHUNK_BYTES] + bytes(CHUNK_BYTES)
    )
    with pytest.raises(TaskError, match="data x: large on first is not as it was") as told:
        brought(tmp_path, Answers(original.manifest.digest, [first]))
    assert "submit the job again" in told.value.remedy


def test_a_full_disk_is_named(source, original, tmp_path, monkeypatch):
    first = source("first", Flaky(original, 100))

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dtd.datasets.cache.Content.write", full)
    with pytest.raises(TaskError, match="data x: a copy cannot be written: No space left"):
        brought(tmp_path, Answers(original.manifest.digest, [first]))


@pytest.mark.parametrize("is_here", [False, True])
def test_equal_data_of_two_names_are_on_a_host_once(source, original, tmp_path, is_here):
    first = source("first", Flaky(original, 100))
    data = JobData(
        *(tmp_path / "cache", 1 << 30),
        by="worker-9",
        requests=Answers(original.manifest.digest, [first]),
        tell=queue.SimpleQueue().put,
    )
    paths = {"x": str(original.root) if is_here else "/nowhere/x", "y": "/nowhere/y"}
    data.bring("j", paths, connect=connect_tcp, progress=lambda: None)
    assert data_path("y") == data_path("x")
    assert same(data_path("y"), original)
    assert sorted(first.content.reads) == ([] if is_here else [*range(CHUNKS)])


def test_data_that_lack_a_file_are_not_waited_for(original, tmp_path):
    link = original.root / "link"
    link.symlink_to("nothing")
    with pytest.raises(TaskError, match=f"data x: {link} is a link to nothing"):
        brought(tmp_path, Answers(original.manifest.digest, []), str(original.root))


def test_own_data_that_differ_are_named_with_the_file(source, original, tmp_path):
    first = source("first", original)
    own = tmp_path / "own"
    own.mkdir()
    (own / "large").write_bytes((original.root / "large").read_bytes())
    (own / "small").write_bytes(b"123")
    answers = Answers(original.manifest.digest, [first])
    with pytest.raises(TaskError, match=f"{own} on worker-9 is not .* on first: .* in small"):
        brought(tmp_path, answers, str(own))


def test_only_data_of_the_job_are_open(original, tmp_path):
    answers = Answers(original.manifest.digest, [])
    data = JobData(tmp_path / "c", 1 << 30, by="w", requests=answers, tell=answers.asked.append)
    data.bring("j", {"x": str(original.root)}, connect=connect_tcp, progress=lambda: None)
    digest = original.manifest.digest
    assert data.open(f"data/{digest}").blobs[2].size_bytes == original.manifest.size_bytes
    with pytest.raises(TaskError, match="not of this worker's job"):
        data.open("data/" + "0" * 64)
    data.tell_again()
    assert answers.asked[-1].digest == digest
