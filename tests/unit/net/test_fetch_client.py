"""Fetching a checkpoint's files: resumed where a try stopped, named only when they verify."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import xxhash

from dtd.errors import CheckpointError
from dtd.net.clients.fetch_client import RANGE_BYTES, FetchClient
from dtd.planes import PlaneCoder
from dtd.wire import messages as m
from dtd.wire.session import DataCredential

TICKET = DataCredential(secret=b"s" * 32, scope="any")
RESOURCE = "checkpoint/digits-1/step-10"
NAME = "model.safetensors"
CONTENT = bytes(range(256)) * 9000 + b"tail"
FLOATS = np.random.default_rng(4).standard_normal(3 * RANGE_BYTES // 4 + 5).astype("<f4").tobytes()
CODER = PlaneCoder()


@pytest.fixture
def offer(server):
    """Lets the server offer a file; returns the ranges asked for."""

    def start(content=CONTENT, *, digest=None, stop_after=None, coded=False, cut=0):
        digest = digest or xxhash.xxh3_128(content).hexdigest()
        manifest = json.dumps({"files": {NAME: {"hash": digest}, "lost": {}}}).encode()
        ranges = []

        def script(message):
            if isinstance(message, m.FetchOpen):
                info = m.FetchInfo(blobs=(m.BlobInfo(name=NAME, size_bytes=len(content)),))
                return m.message_bytes(info, manifest)
            if stop_after is not None and len(ranges) == stop_after:
                return None
            ranges.append((message.offset, message.length))
            data = content[message.offset : message.offset + message.length]
            answer = m.FetchData(blob=message.blob, offset=message.offset)
            if coded and (code := CODER.encode(memoryview(data), 4)) is not None:
                answer = replace(answer, plain_bytes=len(data), item_bytes=4)
                data = bytes(code[:-cut] if cut else code)
            return m.message_bytes(answer, data)

        server.script = script
        return ranges

    return start


def fetch(server, target, **options):
    with FetchClient([server.address], RESOURCE, TICKET) as client:
        client.fetch(NAME, target, **options)


def test_a_file_is_fetched_in_ranges(server, offer, tmp_path):
    ranges, told = offer(), []
    fetch(server, tmp_path / "here", on_bytes=lambda done, size: told.append((done, size)))
    assert (tmp_path / "here").read_bytes() == CONTENT
    assert ranges == [
        (0, RANGE_BYTES),
        (RANGE_BYTES, RANGE_BYTES),
        (2 * RANGE_BYTES, len(CONTENT) - 2 * RANGE_BYTES),
    ]
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_broken_fetch_goes_on_where_it_stopped(server, offer, tmp_path):
    offer(stop_after=2)
    with pytest.raises(CheckpointError, match="closed the connection"):
        fetch(server, tmp_path / "here")
    assert not (tmp_path / "here").exists()
    ranges = offer()
    fetch(server, tmp_path / "here")
    assert ranges == [(2 * RANGE_BYTES, len(CONTENT) - 2 * RANGE_BYTES)]
    assert (tmp_path / "here").read_bytes() == CONTENT


def test_a_damaged_file_gets_no_name(server, offer, tmp_path):
    offer(digest="0" * 32)
    with pytest.raises(CheckpointError, match="does not match the hash in its manifest"):
        fetch(server, tmp_path / "here")
    assert list(tmp_path.iterdir()) == []


def test_coded_ranges_make_the_same_file(server, offer, tmp_path):
    offer(FLOATS, coded=True)
    fetch(server, tmp_path / "here")
    assert (tmp_path / "here").read_bytes() == FLOATS


def test_damaged_code_gets_no_name_and_nothing_of_it_is_kept(server, offer, tmp_path):
    offer(FLOATS, coded=True, cut=3)
    with pytest.raises(CheckpointError, match="coded payload"):
        fetch(server, tmp_path / "here")
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0]
