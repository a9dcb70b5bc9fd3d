"""Answers: in order, each when the last one was read."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from dtd.coordinator.containment import Containment
from dtd.coordinator.handlers.answers import Answers
from dtd.errors import ProtocolError, RequestRefused
from dtd.security.identity import Identity
from dtd.wire import messages as m


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
