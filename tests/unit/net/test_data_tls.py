"""Data ports that speak TLS to whoever does, and jobs that insist on it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dtd.address import Address
from dtd.errors import CheckpointError, ErrorCode, ProtocolError
from dtd.exchange.endpoint import RingEndpoint
from dtd.net.data_port.data_server import DataServer
from dtd.net.liveness import Lifeline
from dtd.net.server import begins_tls
from dtd.security import identity
from dtd.security.authority import Authority
from dtd.security.credential import Credential
from dtd.wire import messages as m

PATIENCE_S = 60.0
SECRET = b"s" * 32
LOOPBACK = Address("127.0.0.1", 0)


@pytest.fixture(scope="module")
def credential(tmp_path_factory):
    """A worker's credential of a fresh cluster."""
    directory = tmp_path_factory.mktemp("cluster")
    authority = Authority.create(directory / "pki")
    path = directory / "worker.credential"
    here = (Address("127.0.0.1", 1),)
    authority.enrol(path, identity.WORKER, "host", coordinators=here)
    return Credential.load(path)


def no_checkpoint(name):
    raise CheckpointError(f"{name} is not here")


class Node:
    """One rank of a ring over TLS."""

    def __init__(self, rank, lifeline):
        self.rank, self.lifeline = rank, lifeline
        self.server = DataServer(f"worker-{rank}", no_checkpoint)
        self.up = asyncio.Event()
        self.broken = asyncio.get_running_loop().create_future()

    def ring_up(self):
        self.up.set()

    def ring_broken(self, loss):
        self.broken.set_result((loss.suspect, loss.evidence, loss.reason))

    def make(self, roster, context):
        assign = m.Assign(
            job="job-1",
            generation=4,
            roster_id=9,
            rank=self.rank,
            roster=roster,
            held_generation=0,
            held_step=0,
            secret=SECRET,
        )
        self.lifelines = asyncio.Queue()
        self.endpoint = RingEndpoint(
            assign,
            self.server,
            chunk_bytes=1 << 16,
            beat_interval_s=2.0,
            silence_s=PATIENCE_S,
            listener=self,
            lifeline=self.lifeline,
            context=context,
        )
        accept = self.endpoint._accept_lifeline

        def accept_lifeline(link, rank):
            accept(link, rank)
            self.lifelines.put_nowait(link)

        self.endpoint._accept_lifeline = accept_lifeline


@pytest.fixture
async def ring(credential):
    """A trainer and a server whose job is encrypted, up."""
    lifeline = Lifeline()
    lifeline.start()
    nodes = [Node(0, lifeline), Node(1, None)]
    members = []
    for node in nodes:
        bound = await node.server.listen(LOOPBACK, context=credential.server_context())
        members.append(
            m.Member(
                name=f"worker-{node.rank}",
                incarnation=1,
                host=bound.host,
                port=bound.port,
                holds=True,
                serves=node.rank == 1,
            )
        )
    for node in nodes:
        node.make(tuple(members), credential.client_context())
        node.endpoint.connect()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(node.up.wait() for node in nodes))
    yield nodes
    for node in nodes:
        node.endpoint.end("the test is over")
        node.server.close()


def port_of(node):
    own = node.endpoint.assign.roster[node.rank]
    return Address(own.host, own.port)


@pytest.mark.parametrize("role", [m.Role.RING, m.Role.FETCH, m.Role.LIFELINE, m.Role.STAR])
async def test_an_encrypted_job_is_not_served_in_the_clear(ring, dial, role):
    peer = await dial(port_of(ring[0]), role, generation=4, roster_id=9, rank=1)
    error = await peer.end()
    assert isinstance(error, ProtocolError)
    assert error.code is ErrorCode.WRONG_STATE
    assert not ring[0].broken.done()


@pytest.mark.parametrize(("first", "is_tls"), [(b"\x16\x03\x01", True), (b"DTDF", False)])
async def test_the_first_byte_tells_what_a_caller_speaks(first, is_tls):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0)
        asking = asyncio.create_task(begins_tls(ours, patience_s=PATIENCE_S))
        theirs.send(first)
        assert await asking is is_tls
        assert ours.recv(100) == first
