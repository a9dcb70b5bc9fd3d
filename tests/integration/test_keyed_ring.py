"""A ring of real processes on an address that others could reach: its frames bear keyed MACs."""

from __future__ import annotations

import json
import os
import socket
import sys

import pytest

from dtd.address import is_loopback
from dtd.wire.tags import FLAG_GCM

pytestmark = pytest.mark.integration

WORLD = 2
PATIENCE_S = 60.0
CHILD = """
import json, sys
from scripts.benchrun.ring_side import RingSide

rank, world, host = json.loads(sys.stdin.readline())
side = RingSide({"rank": rank, "world": world, "host": host, "lends": True})
print(json.dumps(side.listen()), flush=True)
side.join(*json.loads(sys.stdin.readline()))
side.prepare(1 << 20, "float32")
side.verify()
endpoint = side._ring.endpoint
print(json.dumps([link.session.tag.flag for link in endpoint.links.values()]), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def host():
    """An address of this machine's own that is no loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # sends nothing: finds out how it would be sent
        except OSError:
            pytest.skip("this machine has no address but loopback")
        own = asking.getsockname()[0]
    if is_loopback(own):
        pytest.skip("this machine has no address but loopback")
    return own


@pytest.fixture
def children(prepared, tmp_path):
    """What each rank is told and says."""
    (tmp_path / "keyed_rank.py").write_text(CHILD)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "keyed_rank"]
    started, files = [], []
    with (tmp_path / "log").open("wb") as log:
        for _ in range(WORLD):
            ours, its = socket.socketpair()
            with ours, its:
                started.append(prepared.start(command, (its, its, log), environment))
                files.append(ours.makefile("rw"))
    yield files
    for file in files:
        file.close()
    for child in started:
        child.wait(PATIENCE_S)


def told(child, what):
    child.write(json.dumps(what) + "\n")
    child.flush()


def said(child):
    line = child.readline()
    assert line, "a rank has ended"
    return json.loads(line)


def test_a_ring_beyond_loopback_sums_under_keyed_macs(host, children):
    for rank, child in enumerate(children):
        told(child, [rank, WORLD, host])
    addresses = [said(child) for child in children]
    for child in children:
        told(child, [addresses, bytes(range(32)).hex()])
    assert [said(child) for child in children] == [[FLAG_GCM, FLAG_GCM]] * WORLD
