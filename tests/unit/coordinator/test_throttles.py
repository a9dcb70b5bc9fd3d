"""Rates, quotas and unanswered questions: each worker is bounded, and nobody else is."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest

from dtd.coordinator.answers import Answers
from dtd.coordinator.containment import Containment
from dtd.coordinator.throttles import NOTICES_BURST, REGISTERED_AT_ONCE, Pace, ReportQuotas
from dtd.errors import ProtocolError, RequestRefused
from dtd.security.identity import Identity
from dtd.wire import messages as m
from dtd.wire.frames import Hold

# --- a worker that talks too fast is read later, and nobody else is ------------------------------


class Link:
    def __init__(self, role="worker", name="host", *, speaks=m.Role.WORKER):
        self.identity = Identity(role=role, name=name, serial="ab", where="certificate")
        self.session = SimpleNamespace(role=speaks)
        self.resumed = asyncio.Event()

    def resume(self):
        self.resumed.set()


def said(pace, link):
    """The outcome of one more message."""
    return pace.place(link, m.Heartbeat(state="idle"), 0)


def heard(pace, link, payload_bytes=0):
    """How many messages go through before one has to wait; None: all do."""
    for count in range(1, 1000):
        if isinstance(pace.place(link, m.Heartbeat(state="idle"), payload_bytes), Hold):
            return count - 1
    return None


async def test_workers_of_one_credential_share_a_rate_and_others_have_theirs():
    pace = Pace()
    heard(pace, Link())
    assert isinstance(said(pace, Link()), Hold)
    assert said(pace, Link(name="other")) is None


async def test_a_worker_that_comes_and_goes_waits_to_be_let_in_and_others_do_not():
    def register(name):
        return m.Register(
            name=name,
            incarnation=1,
            pid=1,
            host="here",
            device="cpu",
            data_host="127.0.0.1",
            data_port=1,
            version="1",
        )

    pace = Pace()
    came = [pace.place(Link(), register("w"), 0) for _ in range(100)]
    assert came.count(None) == REGISTERED_AT_ONCE + 1
    assert pace.place(Link(), register("other"), 0) is None
    assert said(pace, Link()) is None


# --- unread answers -----------------------------------------------------------------------------


class Reader:
    def __init__(self, role="viewer", name="ann"):
        self.identity = Identity(role=role, name=name, serial="ab", where="certificate")
        self.queued, self.aborted = 0, False
        self.drains = []

    def queued_bytes(self):
        return self.queued

    def drained(self):
        if not self.queued:
            return None
        self.drains.append(asyncio.get_running_loop().create_future())
        return self.drains[-1]

    def abort(self):
        self.aborted = True


class Asker(Reader):
    """A connection that has asked, and reads when the test wants."""

    def __init__(self):
        super().__init__()
        self.closing, self.said = False, asyncio.Queue()

    def fail(self, error):
        self.closing = True
        self.said.put_nowait(error)


@pytest.fixture
def answers():
    return Answers(Containment(lambda: 0.0, lambda *_told, **_more: None))


async def test_answers_come_in_order_each_when_the_last_was_read(answers):
    link, given, noted = Asker(), [], asyncio.Event()

    async def answer(number):
        link.queued = 8
        given.append(number)
        if number:
            noted.set()

    for number in range(3):
        answers.begin(link, m.GetStatus(), partial(answer, number), most=3)
    with pytest.raises(ProtocolError, match="3 requests are unanswered"):
        answers.begin(link, m.GetStatus(), partial(answer, 3), most=3)
    await asyncio.sleep(0)
    assert given == [0]
    link.queued = 0
    link.drains.pop().set_result(None)
    await noted.wait()
    answers.forget(link)
    await asyncio.sleep(0)
    assert given == [0, 1]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RequestRefused("it is too dark"), "it is too dark"),
        (OSError("disk full"), "the coordinator's store failed: disk full"),
        (ValueError("a defect"), "the coordinator failed at answering GET_STATUS"),
    ],
)
async def test_an_error_closes_the_connection_and_what_it_asked_is_forgotten(answers, error, said):
    link, given = Asker(), []

    async def fail():
        raise error

    async def answer():
        given.append(1)

    answers.begin(link, m.GetStatus(), fail)
    answers.begin(link, m.GetStatus(), answer)
    assert (await link.said.get()).message == said
    await asyncio.sleep(0)
    assert given == []
    assert not answers._tasks


# --- workers' reports within their shares: written in small batches, the rest said and counted


class Thread:
    """Runs nothing before it is told to."""

    def __init__(self):
        self.calls = []

    def later(self, function, *, turn):
        self.calls.append((turn, function))

    def run(self):
        while self.calls:
            self.calls.pop(0)[1]()


class Store:
    def __init__(self):
        self.batches = []

    def add_lines(self, job, rank, worker, lines):
        self.batches.append((job, rank, worker, lines))


class World:
    def __init__(self, lines_per_s=1000):
        self.now = 100.0
        self.told = asyncio.Queue()
        self.thread, self.store = Thread(), Store()
        self.desk = ReportQuotas(
            lines_per_s, self.store, self.thread, self.incident, lambda: self.now
        )

    def incident(self, kind, message, *, worker="", **details):
        self.told.put_nowait((kind, message, worker, details))

    def output(self, payload, worker="w"):
        self.desk.output(worker, m.JobOutput(job="digits-1", rank=3), payload)

    def written(self):
        self.thread.run()
        return [line for batch in self.store.batches for line in batch[3]]


@pytest.fixture
async def world():
    made = World()
    yield made
    made.desk.close()


async def test_notices_beyond_the_share_are_dropped_and_an_answer_to_save_is_not(world):
    notice = m.Notice(job="digits-1", event="row_retried", message="again")
    heeded = [world.desk.accepts("w", notice) for _ in range(int(NOTICES_BURST) + 1)]
    assert heeded == [True] * int(NOTICES_BURST) + [False]
    answer = m.Notice(job="digits-1", event="checkpoint_failed", message="no space")
    assert world.desk.accepts("w", answer)
    async with asyncio.timeout(10):
        _, message, _, _ = await world.told.get()
    assert message.endswith("1 notices were dropped")


async def test_a_second_worker_is_told_of_at_once_while_the_first_goes_on(world):
    notice = m.Notice(job="digits-1", event="row_retried", message="again")

    def exceed(worker):
        while world.desk.accepts(worker, notice):
            pass

    async with asyncio.timeout(10):
        exceed("first")
        assert (await world.told.get())[2] == "first"
        exceed("first")  # told of in a minute
        exceed("second")
        assert (await world.told.get())[2] == "second"
