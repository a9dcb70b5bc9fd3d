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


def note(text: str) -> Item[str, str]:
    return Item(text, "")


@pytest.fixture
def outbox() -> Outbox[str, str]:
    """One in which a job is being written."""
    made: Outbox[str, str] = Outbox()
    assert made.put(Item(SAVE, "")) == [Item(SAVE, "")]
    return made


def test_nothing_waits_while_nothing_is_written() -> None:
    outbox: Outbox[str, str] = Outbox()
    for item in (to("a", ASSIGN), note("settled"), Item(JobEnded(job=JOB), "")):
        assert outbox.put(item) == [item]


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


def test_one_write_follows_the_other(outbox: Outbox[str, str]) -> None:
    later: Item[str, str] = Item(SaveJob(job=JOB), "later")
    for item in (note("first"), later, note("second")):
        assert outbox.put(item) == []
    assert outbox.written() == [note("first"), later]
    assert outbox.put(note("third")) == []
    assert outbox.written() == [note("second"), note("third")]
    assert outbox.put(note("fourth")) == [note("fourth")]


def save(about: str, *, job: str = "j-1", announces: int = 0) -> Item[str, str]:
    known = Job(id=job, spec={"job": {"name": "j"}})
    return Item(SaveJob(job=known, announces=announces), about)


def test_a_job_that_waits_to_be_written_is_written_as_it_is_by_then(
    outbox: Outbox[str, str],
) -> None:
    """However far the store falls behind, one write follows the one under way."""
    for step in range(100):
        assert outbox.put(save(f"step {step}")) == []
        assert outbox.put(note(f"saved {step}")) == []
    assert outbox.written() == [save("step 99")]
    assert outbox.put(save("step 100")) == []  # the one that is out is as it is
    assert outbox.written() == [*(note(f"saved {step}") for step in range(100)), save("step 100")]
    assert outbox.written() == []


def test_what_announces_a_generation_is_written_as_it_was(outbox: Outbox[str, str]) -> None:
    """And what came after it is not written before it."""
    items = [save("1"), save("2", announces=2), save("3"), save("4", announces=3)]
    for item in items:
        assert outbox.put(item) == []
    for item in items:
        assert outbox.written() == [item]


def test_another_jobs_write_keeps_its_place(outbox: Outbox[str, str]) -> None:
    items = [save("1"), save("2", job="j-2"), save("3")]
    for item in items:
        assert outbox.put(item) == []
    for item in items:
        assert outbox.written() == [item]
