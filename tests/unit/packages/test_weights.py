"""Files of weights on their way: what they look like, and who keeps them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from dtd.errors import RequestRefused, TaskError, UsageError
from dtd.packages import archives as weights
from dtd.packages.archives import WEIGHTS, Archives, read_weights_file, verify_file


def content(size: int = 100) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


DEEP = (10**5).to_bytes(8, "little") + b"[" * 10**5


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content())
    return path


def test_a_file_is_known_by_its_hash(file: Path) -> None:
    read = read_weights_file(file)
    assert (read.path, read.size_bytes) == (file, len(content()))
    assert read.digest == hashlib.sha256(content()).hexdigest()
    verify_file(file, read.digest)
    with pytest.raises(TaskError, match="were damaged"):
        verify_file(file, "0" * 64)


@pytest.mark.parametrize(
    "wrong", [b"", b"short", b"PK\x03\x04" + bytes(60), (3).to_bytes(8, "little") + b"[1]", DEEP]
)
def test_what_is_no_safetensors_file(file: Path, wrong: bytes) -> None:
    file.write_bytes(wrong)
    with pytest.raises(UsageError, match="is not a safetensors file") as caught:
        read_weights_file(file)
    assert "save_file" in caught.value.remedy


def test_what_cannot_be_sent(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_weights_file(file.with_name("missing"))
    monkeypatch.setattr(weights, "MAX_WEIGHTS_BYTES", 10)
    with pytest.raises(UsageError, match="more than 10") as caught:
        read_weights_file(file)
    assert "build_model()" in caught.value.remedy


def test_the_coordinator_keeps_a_few_and_verifies_them(tmp_path: Path) -> None:
    archives = Archives(tmp_path / "weights", WEIGHTS)
    digests = []
    for size in range(1, 7):
        data = content(size)
        digest = hashlib.sha256(data).hexdigest()
        half = len(data) // 2
        first = digests[0] if digests else digest
        given = {"size": len(data), "in_use": lambda first=first: {first}}
        assert archives.put(digest, offset=0, piece=data[:half], **given) == half
        assert archives.put(digest, offset=half, piece=data[half:], **given) == len(data)
        digests.append(digest)
    assert archives.has(digests[0])  # a job needs it
    assert not archives.has(digests[1])
    assert archives.has(digests[5])
    assert archives.piece(digests[5], 8)[1] == content(6)[8:]
    with pytest.raises(TaskError, match="damaged"):
        archives.put("0" * 64, size=4, offset=0, piece=b"abcd", in_use=set)
    with pytest.raises(RequestRefused, match="weights of 0 bytes"):
        archives.put("0" * 64, size=0, offset=0, piece=b"", in_use=set)
