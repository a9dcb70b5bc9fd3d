"""Effects that wait for the store, effects that do not, and the order of all."""

from __future__ import annotations

import pytest

from dtd.cluster.events import (
    Disconnect,
    Incident,
    Item,
    JobEnded,
    Outbox,
    SaveJob,
    Send,
    needs_no_store,
)
from dtd.cluster.records import Job
from dtd.wire import messages as m

JOB = Job(id="j-1", spec={"job": {"name": "j"}})
SAVE = SaveJob(job=JOB)
ACK = m.HeartbeatAck()
ASSIGN = m.Assign(
    job="j-1", generation=1, roster_id=1, rank=0, roster=(), held_generation=0, held_step=0
)


def freeze(*, stop: bool = False) -> m.Freeze:
    return m.Freeze(generation=1, at_boundary=False, stop=stop, reason="why")


def release(state: str) -> m.Release:
    return m.Release(job="j-1", state=state, reason="why")


def to(name: str, message: m.Message) -> Item[str, str]:
    return Item(Send(name=name, message=message), name)


@pytest.fixture
def outbox() -> Outbox[str, str]:
    """One in which a job is being written."""
    made: Outbox[str, str] = Outbox()
    assert made.put(Item(SAVE, "")) == [Item(SAVE, "")]
    return made


@pytest.mark.parametrize(
    "effect",
    [
        Send(name="a", message=ACK),
        Send(name="a", message=freeze()),
        Send(name="a", message=release("evicted")),
        Send(name="a", message=m.Probe(name="b", host="h", port=1)),
        Send(name="a", message=m.Signal(signal="KILL")),
        Send(name="a", message=m.Registered(heartbeat_interval_s=1, heartbeat_timeout_s=2)),
        Disconnect(name="a", reason="silent"),
    ],
    ids=str,
)
def test_control_traffic_does_not_wait_for_the_disk(
    outbox: Outbox[str, str], effect: Send | Disconnect
) -> None:
    assert needs_no_store(effect)
    assert outbox.put(Item(effect, "a")) == [Item(effect, "a")]


@pytest.mark.parametrize(
    "effect",
    [
        Send(name="a", message=ASSIGN),
        Send(name="a", message=m.Prepare(job="j-1", spec={})),
        Send(name="a", message=freeze(stop=True)),
        Send(name="a", message=release("done")),
        Incident(kind="k", message="m"),
        JobEnded(job=JOB),
        SAVE,
        "settled",
    ],
    ids=str,
)
def test_what_a_crash_must_not_make_untrue_waits(outbox: Outbox[str, str], effect: Send) -> None:
    assert not needs_no_store(effect)
    assert outbox.put(Item(effect, "a")) == []
    assert outbox.written() == [Item(effect, "a")]


def test_on_one_connection_only_acknowledgements_overtake(outbox: Outbox[str, str]) -> None:
    """A member that froze before it was assigned would never freeze."""
    assert outbox.put(to("a", ASSIGN)) == []
    assert outbox.put(to("a", freeze())) == []
    assert outbox.put(Item(Disconnect(name="a", reason="silent"), "a")) == []
    assert outbox.put(to("a", ACK)) == [to("a", ACK)]
    assert outbox.put(to("b", freeze())) == [to("b", freeze())]
    assert outbox.written() == [
        to("a", ASSIGN),
        to("a", freeze()),
        Item(Disconnect(name="a", reason="silent"), "a"),
    ]
    assert outbox.put(to("a", freeze())) == [to("a", freeze())]
