"""A coordinator's archives: taken in from where they end, verified, given in pieces."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path

import pytest

from dtd.errors import RequestRefused, TaskError, UsageError
from dtd.packages.archives import PACKAGE, WEIGHTS, Archives, read_weights_file

CONTENT = bytes(range(256)) * 4
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def archives(tmp_path: Path) -> Archives:
    return Archives(tmp_path / "packages")


def put(archives: Archives, offset: int, piece: bytes, *, digest=DIGEST, size=None) -> int:
    size = len(CONTENT) if size is None else size
    return archives.put(digest, size=size, offset=offset, piece=piece, in_use=())


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


@pytest.mark.parametrize("digest", ["../../etc/passwd", "x", "A" * 64])
def test_a_digest_names_no_other_file(archives: Archives, digest: str) -> None:
    for call in (
        archives.has,
        lambda d: archives.piece(d, 0),
        lambda d: put(archives, 0, b"", digest=d),
    ):
        with pytest.raises(TaskError, match="sha256"):
            call(digest)


@pytest.mark.parametrize("bound", [{"max_kept": 4}, {"max_kept_bytes": 4 * 2}])
def test_the_newest_are_kept_and_those_in_use(tmp_path: Path, bound: dict[str, int]) -> None:
    archives = Archives(tmp_path / "packages", dataclasses.replace(PACKAGE, **bound))  # type: ignore[arg-type]
    digests = []
    for number in range(10, 17):
        content = str(number).encode()
        digests.append(hashlib.sha256(content).hexdigest())
        archives.put(digests[-1], size=len(content), offset=0, piece=content, in_use={digests[0]})
        os.utime(tmp_path / "packages" / f"{digests[-1]}.tar", (number, number))
    kept = {path.stem for path in (tmp_path / "packages").iterdir()}
    assert kept == {digests[0], *digests[-4:]}


def content(size: int = 100) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


DEEP = (10**5).to_bytes(8, "little") + b"[" * 10**5


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content())
    return path


@pytest.mark.parametrize(
    "wrong", [b"", b"short", b"PK\x03\x04" + bytes(60), (3).to_bytes(8, "little") + b"[1]", DEEP]
)
def test_what_is_no_safetensors_file(file: Path, wrong: bytes) -> None:
    file.write_bytes(wrong)
    with pytest.raises(UsageError, match="is not a safetensors file") as caught:
        read_weights_file(file)
    assert "save_file" in caught.value.remedy


def test_the_coordinator_keeps_a_few_and_verifies_them(tmp_path: Path) -> None:
    archives = Archives(tmp_path / "weights", WEIGHTS)
    digests = []
    for size in range(1, 7):
        data = content(size)
        digest = hashlib.sha256(data).hexdigest()
        half = len(data) // 2
        first = digests[0] if digests else digest
        given = {"size": len(data), "in_use": {first}}
        assert archives.put(digest, offset=0, piece=data[:half], **given) == half
        assert archives.put(digest, offset=half, piece=data[half:], **given) == len(data)
        digests.append(digest)
    assert archives.has(digests[0])  # a job needs it
    assert not archives.has(digests[1])
    assert archives.has(digests[5])
    assert archives.piece(digests[5], 8)[1] == content(6)[8:]
    with pytest.raises(TaskError, match="damaged"):
        archives.put("0" * 64, size=4, offset=0, piece=b"abcd", in_use=())
    with pytest.raises(RequestRefused, match="weights of 0 bytes"):
        archives.put("0" * 64, size=0, offset=0, piece=b"", in_use=())
