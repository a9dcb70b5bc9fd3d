"""A state is taken over in place, from several donors; what none can give breaks the ring."""

from __future__ import annotations

import contextlib
import queue
import threading

import numpy as np
import pytest

from dtd.address import Address
from dtd.errors import CheckpointError, RingBroken
from dtd.net.clients.blocking_link import connect_tcp
from dtd.net.coding_link import Coding
from dtd.net.data_port import fetch_server
from dtd.net.data_port.data_server import DataServer
from dtd.net.data_port.resources import Blob, Resource, memory_blob
from dtd.wire import messages as m
from dtd.wire.data_keys import ticket_key
from dtd.wire.session import DataCredential
from dtd.worker.job.fetch import DONORS_AT_ONCE, RANGE_BYTES, fetch_state
from tests.played_socket import PlayedSocket

PATIENCE_S = 30.0
RESOURCE = "state/4"
NEVER_S = 1 << 40
KEY = ticket_key(b"w" * 32, RESOURCE, NEVER_S)
TICKET = DataCredential(secret=KEY, scope=RESOURCE, expires_s=NEVER_S)
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


class Ring:
    """The ring of the generation, as far as a fetch sees it."""

    rank = 0

    def __init__(self):
        self.why_broken = ""
        self.given_up = ""
        self._callbacks = []
        self.watched = threading.Event()

    def on_broken(self, callback):
        self._callbacks.append(callback)
        if self.why_broken:
            callback()
        self.watched.set()

    def give_up(self, reason):
        self.given_up = reason

    @contextlib.contextmanager
    def waiting(self):
        yield

    def broken(self):
        return RingBroken(self.why_broken, suspect="worker-7", evidence="silent")

    def end(self, reason):
        self.why_broken = reason
        for callback in self._callbacks:
            callback()


class Source:
    """A data server on an event loop in a thread of its own, as in the worker."""

    def __init__(self, loop_thread, name="worker-0"):
        self._loop_thread = loop_thread
        self.name = name
        self.server, self.address = loop_thread.run(self._listen())

    async def _listen(self):
        def no_checkpoint(name):
            raise CheckpointError(f"{name} is not here")

        server = DataServer(self.name, no_checkpoint)
        server.worker_secret = b"w" * 32
        return server, await server.listen(Address("127.0.0.1", 0))

    @property
    def member(self):
        return member(self.address, self.name)

    def call(self, function, *arguments):
        return self._loop_thread.call(function, *arguments)

    def offer(self, blobs=BLOBS, *, manifest=b"the manifest", item_bytes=4):
        named = [
            blob if isinstance(blob, Blob) else memory_blob(str(i), memoryview(blob), item_bytes)
            for i, blob in enumerate(blobs)
        ]
        self.call(self.server.offer, RESOURCE, Resource(manifest=manifest, blobs=named))

    def die(self):
        """Cut every connection, as the kernel does for a killed process."""

        def cut():
            for link in self.server._server.links():
                link.abort()
            self.server.close()

        self.call(cut)


@pytest.fixture
def sources(loop_thread):
    """Makes this many data servers."""
    made = []

    def make(count):
        made.extend(Source(loop_thread, f"worker-{number}") for number in range(count))
        return made[-count:]

    yield make
    for one in made:
        one.call(one.server.close)


@pytest.fixture
def source(sources):
    return sources(1)[0]


def member(address, name="worker-0"):
    return m.Member(name=name, incarnation=1, host=address.host, port=address.port, holds=True)


def fetch(run, *donors, ring=None, silence_s=PATIENCE_S, connect=connect_tcp, coded=True):
    return fetch_state(
        run,
        donors,
        RESOURCE,
        by="worker-9",
        entry=TICKET,
        silence_s=silence_s,
        ring=ring or Ring(),
        connect=connect,
        coded=coded,
    )


class Giving:
    """A blob that gives a few ranges, and then does something before it gives the next."""

    def __init__(self, content, *, after, then):
        self._content, self._after, self._then = content, after, then
        self.given = 0
        self.stopped = threading.Event()
        self.blob = Blob(name="0", size_bytes=len(content), read=self._read)

    def _read(self, offset, length):
        self.given += 1
        if self.given == self._after:
            self.stopped.set()
            self._then()
        return self._content[offset : offset + length]


LARGE = bytes(range(256)) * (24 * RANGE_BYTES // 256)


@pytest.fixture
def nothing():
    """Blocks until the test is over: a donor that lives and gives nothing."""
    over = threading.Event()
    yield lambda: over.wait(PATIENCE_S)
    over.set()


class Waiting(PlayedSocket):
    """Each read takes more than half of the limit; `often` is set when there were several."""

    def __init__(self, connected):
        super().__init__(connected, pause_s=0.6 * PATIENCE_S)
        self.often = threading.Event()

    def recv_into(self, buffer):
        if self.reads == 8:
            self.often.set()
        return super().recv_into(buffer)


def test_a_donor_that_prepares_its_state_for_longer_than_the_limit_is_not_given_up(
    source, monkeypatch
):
    monkeypatch.setattr(fetch_server, "STILL_WAITING_S", 0.02)
    run, opened = Importer(), queue.SimpleQueue()

    def connect(address, timeout_s):
        made = Waiting(connect_tcp(address, timeout_s))
        opened.put(made)
        return made

    fetching = threading.Thread(
        target=fetch, args=(run, source.member), kwargs={"connect": connect}
    )
    fetching.start()
    waiting = opened.get(timeout=PATIENCE_S)
    assert waiting.often.wait(PATIENCE_S)
    assert waiting.now_s > 4 * PATIENCE_S
    source.offer()
    fetching.join(PATIENCE_S)
    assert run.memory == BLOBS


# --- donors that are lost --------------------------------------------------------------------


def test_a_donor_with_another_state_is_given_up(sources):
    first, other = sources(2)
    first.offer([Giving(LARGE, after=1, then=lambda: None).blob])
    run = Importer((len(LARGE),))

    class Asking(Importer):
        """Another donor's manifest comes while the first one's is looked at."""

        def import_state(self, manifest):
            other.offer([LARGE[::-1]], manifest=b"another manifest")
            return super().import_state(manifest)

    run = Asking((len(LARGE),))
    figures = fetch(run, first.member, other.member)
    assert (run.memory, run.manifest) == ([LARGE], b"the manifest")
    assert figures.donors == ("worker-0",)


@pytest.mark.parametrize("count", [1, 2, DONORS_AT_ONCE + 2])
def test_when_all_donors_die_in_the_middle_the_ring_is_broken(sources, count):
    donors = sources(count)
    for donor in donors:
        donor.offer([Giving(LARGE, after=2, then=donor.die).blob])
    run = Importer((len(LARGE),))
    with pytest.raises(
        RingBroken, match=r"the state could not be fetched from worker-\d"
    ) as caught:
        fetch(run, *(donor.member for donor in donors))
    assert caught.value.suspect in {donor.name for donor in donors}
    assert caught.value.evidence == "reset"
    assert not run.finished


# --- the ring breaks -------------------------------------------------------------------------


def test_a_ring_that_breaks_cuts_the_fetch_off(sources, nothing):
    """With the donors' patience, which is long, nothing but the cut can end it."""
    donors, ring = sources(2), Ring()
    giving = [Giving(LARGE, after=2, then=nothing) for _ in donors]
    for donor, one in zip(donors, giving, strict=True):
        donor.offer([one.blob])
    run = Importer((len(LARGE),))
    caught = []

    def work():
        with pytest.raises(RingBroken, match="worker-7 is silent") as error:
            fetch(run, *(donor.member for donor in donors), ring=ring)
        caught.append(error.value)

    fetching = threading.Thread(target=work)
    fetching.start()
    for one in giving:
        assert one.stopped.wait(PATIENCE_S)
    ring.end("worker-7 is silent")
    fetching.join(PATIENCE_S / 2)
    assert not fetching.is_alive()
    assert [(error.suspect, error.evidence) for error in caught] == [("worker-7", "silent")]
    before = [bytes(one) for one in run.memory]
    for donor in donors:
        donor.call(donor.server.close)
    assert [bytes(one) for one in run.memory] == before
    assert not run.finished


# --- coded ranges ----------------------------------------------------------------------------


class Damaging(Coding):
    """Turns one bit of every code."""

    def __init__(self):
        super().__init__("on")

    def run(self, function, *arguments):
        def damaged():
            code, coder_s = function(*arguments)
            code[-1] ^= 1
            return code, coder_s

        return super().run(damaged)


WEIGHTS = np.random.default_rng(3).standard_normal(5 * RANGE_BYTES // 4 + 7).astype("<f4").tobytes()


def coding(source, made):
    """Let a donor code what it sends, as it would where the network is slow."""
    source.call(setattr, source.server._fetches, "_coding", made)


def test_a_state_is_the_same_from_donors_that_code_and_donors_that_do_not(sources):
    codes, plain = sources(2)
    coding(codes, Coding("on"))
    coding(plain, Coding("off"))
    run, lasting = Importer((len(WEIGHTS), len(LARGE))), [WEIGHTS, LARGE]
    for one in (codes, plain):
        one.offer(lasting)
    fetch(run, codes.member, plain.member)
    assert run.memory == lasting


class Counting(Coding):
    """Keeps the widths of the payloads' elements that are coded."""

    def __init__(self):
        super().__init__("on")
        self.widths = []

    def run(self, function, *arguments):
        self.widths.append(arguments[-1])
        return super().run(function, *arguments)


@pytest.mark.parametrize("coded", [True, False])
def test_ranges_are_coded_if_the_job_lets_them_be(source, coded):
    counting = Counting()
    coding(source, counting)
    source.offer([WEIGHTS])
    run = Importer((len(WEIGHTS),))
    fetch(run, source.member, coded=coded)
    assert run.memory == [WEIGHTS]
    assert counting.widths == ([4] * 5 if coded else [])


def test_a_tensor_is_coded_by_the_width_of_its_own_elements(source):
    counting = Counting()
    coding(source, counting)
    halves = np.random.default_rng(3).standard_normal(RANGE_BYTES // 2).astype("<f2").tobytes()
    source.offer([halves], item_bytes=2)
    run = Importer((len(halves),))
    fetch(run, source.member)
    assert run.memory == [halves]
    assert counting.widths == [2]


def test_damaged_code_is_the_donors_fault_and_another_one_gives_the_state(sources):
    damages, sound = sources(2)
    coding(damages, Damaging())
    run = Importer((len(WEIGHTS),))
    for one in (damages, sound):
        one.offer([WEIGHTS])
    fetch(run, damages.member, sound.member)
    assert run.memory == [WEIGHTS]


def test_damaged_code_alone_breaks_the_ring_as_a_false_tag_does(source):
    coding(source, Damaging())
    source.offer([WEIGHTS])
    with pytest.raises(RingBroken, match="coded payload") as raised:
        fetch(Importer((len(WEIGHTS),)), source.member)
    assert raised.value.evidence == "corrupt"
