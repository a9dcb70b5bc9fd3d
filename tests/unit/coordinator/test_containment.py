"""Errors of the coordinator's own: told once, at the cost of one connection, and nothing else."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from dtd.coordinator.containment import Containment
from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError, RequestRefused
from dtd.net.link import Link


class Teller:
    """Keeps what operators are told."""

    def __init__(self):
        self.told = []

    def incident(self, kind, message, *, worker=""):
        self.told.append((kind, message, worker))


class PlayedLink:
    """A connection that keeps why it was closed."""

    def __init__(self):
        self.failed = []

    def fail(self, error):
        self.failed.append(error)


@pytest.fixture
def teller():
    return Teller()


@pytest.fixture
def containment(teller):
    return Containment(lambda: 0.0, teller.incident)


@pytest.mark.parametrize("error", [KeyError("step"), AssertionError(), LocalProtocolError("long")])
def test_an_error_costs_a_connection_and_is_told_with_its_place(containment, teller, error):
    link = PlayedLink()
    with structlog.testing.capture_logs() as logged, containment.around("X", link, worker="w"):
        raise error
    (failed,) = link.failed
    assert (failed.code, failed.message) == (ErrorCode.INTERNAL, "the coordinator failed at X")
    ((kind, message, worker),) = teller.told
    assert (kind, worker) == ("internal_error", "w")
    assert message.startswith("w: X failed at test_containment.py:")
    assert type(error).__name__ in message
    assert [one["event"] for one in logged] == ["internal_error_traceback"]
    assert logged[0]["exc_info"] is error


@pytest.mark.parametrize(
    "answer", [ProtocolError(ErrorCode.BAD_FIELD, "no"), RequestRefused("not now")]
)
def test_what_others_did_wrong_is_no_error_of_ours(containment, teller, answer):
    with pytest.raises(type(answer)), containment.around("X", PlayedLink()):
        raise answer
    assert (teller.told, containment.errors) == ([], 0)


def test_the_same_error_again_and_again_is_counted_and_not_told(containment, teller):
    for _ in range(100):
        with containment.around("X"):
            raise ValueError("again")
    assert (len(teller.told), containment.errors) == (1, 100)


async def test_what_must_not_end_begins_again(containment, teller, monkeypatch):
    monkeypatch.setattr("dtd.coordinator.containment.AGAIN_AFTER_S", 0.0)
    begun = []

    async def run():
        begun.append(1)
        if len(begun) < 3:
            raise ValueError("no")

    await containment.forever("X", run)
    assert (len(begun), containment.errors) == (3, 2)


async def test_what_nobody_waits_for_is_told_and_ends_its_connection(containment, teller):
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(containment.stray)
    loop.call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert "ZeroDivisionError" in teller.told[0][1]
    link = Link(None)
    containment.stray(loop, {"message": "m", "exception": ValueError("no"), "protocol": link})
    assert link.closing
    containment.stray(loop, {"message": "no error, just words"})
    assert containment.errors == 2
