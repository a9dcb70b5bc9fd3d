"""Copies on a disk: drafts go on, copies are verified, and there is a limit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dtd.datasets.cache import Cache, Copy, Draft, Scans, path_of, what_goes
from dtd.datasets.manifest import CHUNK_BYTES
from dtd.errors import TaskError

LIMIT = 64 * CHUNK_BYTES


def progress() -> None:
    """Nobody waits."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory of three chunks."""
    place = tmp_path / "data"
    (place / "deep").mkdir(parents=True)
    (place / "deep" / "large").write_bytes(os.urandom(2 * CHUNK_BYTES))
    (place / "small").write_bytes(b"12")
    (place / "none").touch()
    return place


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", LIMIT)


def filled(cache: Cache, data: Path, chunks: set[int]) -> Draft:
    """A draft of the data with these chunks."""
    original = cache.scans.content(data, progress)
    draft = cache.draft(original.manifest, in_use=(), progress=progress)
    for chunk in chunks:
        length = original.manifest.chunk_bytes(chunk)
        draft.add(chunk, memoryview(original.read(chunk * CHUNK_BYTES, length)))
    return draft


def test_a_complete_draft_becomes_a_copy_with_the_same_files(cache: Cache, data: Path) -> None:
    draft = filled(cache, data, {2, 0, 1})
    cache.publish(draft)
    copy = cache.copy(draft.content.manifest.digest, progress)
    assert copy is not None
    found = path_of(copy)
    for file in ("deep/large", "small", "none"):
        assert (found / file).read_bytes() == (data / file).read_bytes()
    assert copy.read(0, 5) == draft.content.read(0, 5)  # open files have followed the rename


def test_a_draft_goes_on_with_what_verifies(cache: Cache, data: Path, tmp_path: Path) -> None:
    filled(cache, data, {0, 2}).close()
    (large,) = (tmp_path / "cache").rglob("large")
    with large.open("r+b") as file:
        file.write(b"spoilt")
    draft = filled(cache, data, set())
    assert draft.have == {2}
    (log,) = (tmp_path / "cache").rglob("chunks")
    log.write_bytes(log.read_bytes() + b"\xff\xff\xff\xff\x01")  # a torn and a wild entry
    draft.close()
    assert filled(cache, data, set()).have == {2}


def test_a_copy_that_was_changed_is_none(cache: Cache, data: Path) -> None:
    draft = filled(cache, data, {0, 1, 2})
    cache.publish(draft)
    (path_of(draft.content) / "small").write_bytes(b"34")
    assert cache.copy(draft.content.manifest.digest, progress) is None
    again = filled(cache, data, {0, 1, 2})
    cache.publish(again)
    assert cache.copy(again.content.manifest.digest, progress) is not None


def test_files_are_read_once(cache: Cache, data: Path) -> None:
    reads: list[None] = []
    cache.scans.content(data, lambda: reads.append(None))
    assert reads
    before = len(reads)
    cache.scans.content(data, lambda: reads.append(None))
    assert len(reads) == before
    (data / "small").write_bytes(b"other")
    cache.scans.content(data, lambda: reads.append(None))
    assert len(reads) > before


def test_a_change_just_after_the_reading_is_seen_by_the_next(
    cache: Cache, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember = Scans.remember

    def late(*arguments: Any, **options: Any) -> None:
        (data / "small").write_bytes(b"other")
        remember(*arguments, **options)

    monkeypatch.setattr(Scans, "remember", late)
    before = cache.scans.content(data, progress).manifest
    assert cache.scans.content(data, progress).manifest != before


def test_a_single_file_keeps_its_name(cache: Cache, data: Path) -> None:
    draft = filled(cache, data / "small", {0})
    cache.publish(draft)
    assert path_of(draft.content).name == "small"
    assert path_of(draft.content).read_bytes() == b"12"


COPIES = [Copy("old", 30, 1), Copy("new", 30, 3), Copy("middle", 30, 2)]


def goes(copies: list[Copy], need: int, *, limit: int = 100, free: int = 1000) -> list[str]:
    return what_goes(copies, in_use={"old"}, need_bytes=need, limit_bytes=limit, free_bytes=free)


def test_the_least_recently_used_copies_go_and_those_in_use_stay() -> None:
    assert goes(COPIES, 10) == []
    assert goes(COPIES, 20) == ["middle"]
    assert goes(COPIES, 60) == ["middle", "new"]
    assert goes(COPIES, 10, free=0) == ["middle"]


def test_a_full_cache_and_a_full_disk_are_named() -> None:
    with pytest.raises(TaskError, match="the cache holds 100 B, of which 30 B are in use"):
        goes(COPIES, 71)
    with pytest.raises(TaskError, match="the disk has 65 B"):
        goes(COPIES, 70, free=5)
