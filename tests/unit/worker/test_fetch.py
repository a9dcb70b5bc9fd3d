"""A state is taken over in place; whatever goes wrong is a broken ring and changes nothing."""

from __future__ import annotations

import threading

import pytest

from dtd.address import Address
from dtd.errors import CheckpointError, RingBroken
from dtd.net.data_server import DataServer, Resource, memory_blob
from dtd.wire import messages as m
from dtd.worker.fetch import RANGE_BYTES, fetch_state

RESOURCE = "state/4"
BLOBS = [b"first" * 100, b"", bytes(range(256)) * 5 * (RANGE_BYTES // 256) + b"tail"]


SIZES = tuple(map(len, BLOBS))


class Importer:
    """Receives a state."""

    def __init__(self, sizes=SIZES):
        self.memory = [bytearray(size) for size in sizes]
        self.manifest = b""
        self.finished = False

    def import_state(self, manifest):
        self.manifest = manifest
        return [memoryview(one) for one in self.memory]

    def finish_import(self):
        self.finished = True


class Source:
    """A data server on an event loop in a thread of its own, as in the worker."""

    def __init__(self, loop_thread):
        self._loop_thread = loop_thread
        self.server, self.address = loop_thread.run(self._listen())

    async def _listen(self):
        def no_checkpoint(name):
            raise CheckpointError(f"{name} is not here")

        server = DataServer("worker-0", no_checkpoint)
        return server, await server.listen(Address("127.0.0.1", 0))

    def call(self, function, *arguments):
        self._loop_thread.call(function, *arguments)


@pytest.fixture
def source(loop_thread):
    made = Source(loop_thread)
    yield made
    made.call(made.server.close)


def member(address):
    return m.Member(name="worker-0", incarnation=1, host=address.host, port=address.port)


def offer(source, blobs=BLOBS):
    named = [memory_blob(str(i), memoryview(blob)) for i, blob in enumerate(blobs)]
    source.call(source.server.offer, RESOURCE, Resource(manifest=b"the manifest", blobs=named))


def test_every_blob_arrives_in_the_memory_that_was_named(source):
    offer(source)
    run = Importer()
    memory = list(map(id, run.memory))
    fetch_state(run, member(source.address), RESOURCE, by="worker-1")
    assert run.finished
    assert run.manifest == b"the manifest"
    assert run.memory == BLOBS
    assert list(map(id, run.memory)) == memory


def test_who_comes_before_the_source_is_ready_waits(source):
    run = Importer()
    fetching = threading.Thread(
        target=fetch_state, args=(run, member(source.address), RESOURCE), kwargs={"by": "worker-1"}
    )
    fetching.start()
    offer(source)
    fetching.join(30)
    assert run.finished


def test_a_state_without_blobs(source):
    offer(source, [])
    run = Importer(())
    fetch_state(run, member(source.address), RESOURCE, by="worker-1")
    assert run.finished


def test_a_source_that_is_gone_breaks_the_ring(free_address):
    run = Importer()
    with pytest.raises(RingBroken, match=r"state from worker-0 could not be had: .*refused"):
        fetch_state(run, member(free_address), RESOURCE, by="worker-1")
    assert not run.finished


def test_an_offer_that_is_withdrawn_breaks_the_ring(source):
    class Withdrawing(Importer):
        def import_state(self, manifest):
            source.call(source.server.withdraw)
            return super().import_state(manifest)

    offer(source)
    run = Withdrawing()
    with pytest.raises(RingBroken, match="could not be had"):
        fetch_state(run, member(source.address), RESOURCE, by="worker-1")
    assert not run.finished


def test_a_state_of_another_shape_breaks_the_ring(source):
    offer(source)
    run = Importer(sizes=(len(BLOBS[0]) + 1, 0, 0))
    with pytest.raises(RingBroken, match="cannot be had"):
        fetch_state(run, member(source.address), RESOURCE, by="worker-1")
    assert not run.finished


def test_a_manifest_that_the_run_refuses_breaks_the_ring(source):
    class Refusing(Importer):
        def import_state(self, manifest):
            raise CheckpointError("it announces too much")

    offer(source)
    with pytest.raises(RingBroken, match="announces too much"):
        fetch_state(Refusing(), member(source.address), RESOURCE, by="worker-1")


def scripted(server, info, data):
    """Lets the scripted server answer with these bytes."""
    server.script = lambda message: info if isinstance(message, m.FetchOpen) else data
    return member(server.address)


INFO = m.message_bytes(m.FetchInfo(blobs=(m.BlobInfo(name="0", size_bytes=4),)), b"manifest")


@pytest.mark.parametrize(
    ("info", "data"),
    [
        (m.message_bytes(m.FetchData(blob=0, offset=0), b"1234"), b""),
        (INFO, m.message_bytes(m.FetchData(blob=1, offset=0), b"1234")),
        (INFO, m.message_bytes(m.FetchData(blob=0, offset=1), b"1234")),
        (INFO, m.message_bytes(m.FetchData(blob=0, offset=0), b"123")),
        (INFO, m.message_bytes(m.FetchData(blob=0, offset=0), b"12345")),
        (INFO, INFO),
    ],
)
def test_a_wrong_answer_breaks_the_ring(server, info, data):
    run = Importer(sizes=(4,))
    with pytest.raises(RingBroken, match="does not answer what was asked"):
        fetch_state(run, scripted(server, info, data), RESOURCE, by="worker-1")
    assert not run.finished
    assert run.memory == [bytes(4)]


def test_a_source_that_dies_in_the_middle_breaks_the_ring(server):
    run = Importer(sizes=(4,))
    with pytest.raises(RingBroken, match="closed the connection"):
        fetch_state(run, scripted(server, INFO, None), RESOURCE, by="worker-1")
    assert not run.finished


def test_a_refusal_breaks_the_ring(server, refusal):
    with pytest.raises(RingBroken, match="does not exist"):
        fetch_state(Importer(), scripted(server, refusal, None), RESOURCE, by="worker-1")


def test_garbage_breaks_the_ring(server):
    with pytest.raises(RingBroken, match="could not be had"):
        fetch_state(
            Importer(), scripted(server, b"HTTP/1.1 400 Bad", None), RESOURCE, by="worker-1"
        )
