"""A coordinator's archives: taken in from where they end, verified, given in pieces."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path

import pytest

from dtd.errors import RequestRefused, TaskError
from dtd.packages.archives import PACKAGE, Archives
from dtd.packages.limits import CHUNK_BYTES, MAX_ARCHIVE_BYTES

CONTENT = bytes(range(256)) * 4
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def nothing() -> set[str]:
    return set()


@pytest.fixture
def archives(tmp_path: Path) -> Archives:
    return Archives(tmp_path / "packages")


def put(archives: Archives, offset: int, piece: bytes, *, digest=DIGEST, size=None) -> int:
    size = len(CONTENT) if size is None else size
    return archives.put(digest, size=size, offset=offset, piece=piece, in_use=nothing)


def test_an_upload_goes_on_where_it_has_ended(archives: Archives, tmp_path: Path) -> None:
    assert put(archives, 0, b"") == 0
    assert put(archives, 0, CONTENT[:100]) == 100
    archives = Archives(tmp_path / "packages")  # the coordinator was started again
    assert put(archives, 0, CONTENT[:200]) == 100  # passed over
    assert put(archives, 100, CONTENT[100:]) == len(CONTENT)
    assert archives.has(DIGEST)
    assert put(archives, 0, b"") == len(CONTENT)
    assert archives.piece(DIGEST, 1000) == (len(CONTENT), CONTENT[1000:])
    assert archives.piece(DIGEST, 10_000) == (len(CONTENT), b"")


def test_what_is_not_here_has_no_size(archives: Archives) -> None:
    assert not archives.has(DIGEST)
    assert archives.piece(DIGEST, 0) == (0, b"")


def test_a_piece_is_never_longer_than_a_chunk(archives: Archives) -> None:
    content = bytes(CHUNK_BYTES + 1)
    digest = hashlib.sha256(content).hexdigest()
    put(archives, 0, content, digest=digest, size=len(content))
    assert [len(archives.piece(digest, at)[1]) for at in (0, CHUNK_BYTES)] == [CHUNK_BYTES, 1]


def test_wrong_bytes_are_forgotten_and_may_be_sent_again(archives: Archives) -> None:
    with pytest.raises(TaskError, match="damaged"):
        put(archives, 0, CONTENT[::-1])
    assert not archives.has(DIGEST)
    assert put(archives, 0, CONTENT) == len(CONTENT)


def test_a_part_that_is_longer_than_the_package_begins_again(archives: Archives) -> None:
    put(archives, 0, CONTENT + b"more", size=len(CONTENT) + 10)
    assert put(archives, 0, b"") == 0


@pytest.mark.parametrize("size", [0, MAX_ARCHIVE_BYTES + 1])
def test_a_package_has_a_size_within_the_limit(archives: Archives, size: int) -> None:
    with pytest.raises(RequestRefused, match="must have 1 to"):
        put(archives, 0, b"", size=size)


def test_more_than_was_announced_is_refused(archives: Archives) -> None:
    with pytest.raises(RequestRefused, match="longer"):
        put(archives, 0, CONTENT, size=10)


@pytest.mark.parametrize("digest", ["../../etc/passwd", "x", "A" * 64])
def test_a_digest_names_no_other_file(archives: Archives, digest: str) -> None:
    for call in (
        archives.has,
        lambda d: archives.piece(d, 0),
        lambda d: put(archives, 0, b"", digest=d),
    ):
        with pytest.raises(TaskError, match="sha256"):
            call(digest)


def test_a_disk_that_fails_is_the_coordinators(tmp_path: Path) -> None:
    (tmp_path / "packages").write_text("a file where a directory should be")
    with pytest.raises(RequestRefused, match="coordinator's host"):
        put(Archives(tmp_path / "packages"), 0, CONTENT)


@pytest.mark.parametrize("bound", [{"max_kept": 4}, {"max_kept_bytes": 4 * 2}])
def test_the_newest_are_kept_and_those_in_use(tmp_path: Path, bound: dict[str, int]) -> None:
    archives = Archives(tmp_path / "packages", dataclasses.replace(PACKAGE, **bound))  # type: ignore[arg-type]
    digests = []
    for number in range(10, 17):
        content = str(number).encode()
        digests.append(hashlib.sha256(content).hexdigest())
        archives.put(
            digests[-1], size=len(content), offset=0, piece=content, in_use=lambda: {digests[0]}
        )
        os.utime(tmp_path / "packages" / f"{digests[-1]}.tar", (number, number))
    kept = {path.stem for path in (tmp_path / "packages").iterdir()}
    assert kept == {digests[0], *digests[-4:]}
