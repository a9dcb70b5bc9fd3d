"""Workers whose job starts from a checkpoint are told the holders of its parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dtd.cluster.transitions import JobState
from dtd.coordinator.core import Source
from dtd.coordinator.handlers.workers import _data_hosts, parts_of
from dtd.wire import messages as m
from tests.shards import held_shards

PARENT = "digits-1"


def entry(rank: int, *, world_size: int = 4, **changes: Any) -> dict[str, Any]:
    part = held_shards(rank, world_size, 1).to_wire() if world_size > 1 else []
    place = f"/disk/{PARENT}.tag/g000003-s000000040"
    about = {"job": PARENT, "generation": 3, "step": 40, "digest": "ab", "directory": place}
    sound = {"confirmation": "verified"}
    return {"worker": f"w-{rank}", "part": part, **about, **sound, **changes}


class Coordinator:
    """The directory's view of the daemon."""

    def __init__(
        self,
        listed: list[dict[str, Any]],
        *,
        away: tuple[str, ...] = (),
        from_job: str = PARENT,
        state: JobState = JobState.WARMING,
        serves: bool = False,
    ) -> None:
        self.listed = listed
        self.names = frozenset(one["worker"] for one in listed) - {*away}
        self.store = SimpleNamespace(checkpoints=lambda job: listed)
        self.links = SimpleNamespace(names=lambda: self.names)
        worker = SimpleNamespace(serves=serves)
        cluster = SimpleNamespace(
            job=SimpleNamespace(from_job=from_job, from_step=0, state=state),
            workers=dict.fromkeys(self.names, worker),
        )
        self.membership = SimpleNamespace(cluster_of=lambda _name: cluster)

    async def in_store(self, function: Any, job: str) -> Any:
        return function(job)

    def source(self, worker: str, resource: str) -> Source:
        return Source("10.0.0.1", 7000, resource, 99, f"{worker} {resource}".encode(), ())


async def answer(
    coordinator: Coordinator, *, job: str = PARENT, step: int = 0, worker: str = "w-0"
) -> m.Parts:
    if (begins := coordinator.membership.cluster_of(worker).job) is not None:
        begins.from_step = step
    sent = await parts_of(coordinator, worker, m.GetParts(job=job, step=step))  # type: ignore[arg-type]
    assert (sent.job, sent.step) == (job, step)
    return sent


async def test_holders_come_with_tickets_and_those_that_suffice_first() -> None:
    told = await answer(Coordinator([entry(rank) for rank in range(4)]))
    assert [one.name for one in told.holders] == ["w-0", "w-2", "w-1", "w-3"]
    assert (told.digest, told.missing) == ("ab", "")
    first = told.holders[0]
    resource = f"checkpoint/{PARENT}.tag/g000003-s000000040"
    assert (first.host, first.port, first.resource) == ("10.0.0.1", 7000, resource)
    assert first.part == tuple(held_shards(0, 4, 1).to_wire())
    assert (first.ticket_expires_s, first.ticket_key) == (99, f"w-0 {resource}".encode())


async def test_parts_without_a_digest_belong_to_the_others_and_confirmed_ones_come_first() -> None:
    alone = {"digest": "", "confirmation": "unconfirmed"}
    listed = [entry(0, **alone), entry(1, **alone), entry(2), entry(3)]
    told = await answer(Coordinator(listed, away=("w-3",)))
    assert [one.name for one in told.holders] == ["w-2", "w-0", "w-1"]
    assert (told.digest, told.missing) == ("ab", "")
    unknown = await answer(Coordinator([entry(rank, **alone) for rank in range(4)]))
    assert (unknown.digest, len(unknown.holders)) == ("", 4)


@pytest.mark.parametrize(
    ("coordinator", "job"),
    [
        (Coordinator([entry(0, world_size=1)]), "other"),
        (Coordinator([]), PARENT),
        (Coordinator([entry(rank) for rank in range(4)], from_job="other"), PARENT),
        (Coordinator([entry(rank) for rank in range(4)], from_job=""), ""),
        (Coordinator([entry(rank) for rank in range(4)], state=JobState.RUNNING), PARENT),
    ],
    ids=["another", "none", "not the job's", "fresh", "trains"],
)
async def test_nobody_else_gets_tickets(coordinator: Coordinator, job: str) -> None:
    assert await answer(coordinator, job=job) == m.Parts(job=job, step=0)


# --- where a worker is said to listen ------------------------------------------------------------


class Seen:
    """A connection and its port in one."""

    def __init__(self, host):
        self.host = host
        self.noted = []

    def host_of(self, link):
        return link.host

    def peer_host(self):
        return self.host

    def note_refusal(self, host, why, remedy):
        self.noted.append((host, why, remedy))


def told(data_host, seen, *others):
    register = m.Register(
        name="w-0",
        incarnation=1,
        pid=1,
        host="h",
        device="cpu",
        data_host=data_host,
        data_port=7200,
        version="0",
        others=others,
    )
    return _data_hosts(SimpleNamespace(port=seen), seen, register)


@pytest.mark.parametrize(
    ("data_host", "seen", "expected"),
    [
        ("", "10.0.0.1", "10.0.0.1"),
        ("", "fd00::1", "fd00::1"),
        ("0.0.0.0", "10.0.0.1", "10.0.0.1"),
        ("0.0.0.0", "head.example", "head.example"),
        ("10.0.0.7", "fd00::1", "10.0.0.7"),
        ("fd00::7", "10.0.0.1", "fd00::7"),
    ],
)
def test_it_is_called_where_it_listens(data_host, seen, expected):
    assert told(data_host, Seen(seen)) == (expected,)


@pytest.mark.parametrize(
    ("data_host", "seen", "own", "expected"),
    [
        ("", "10.0.0.1", ("10.9.0.1", "10.0.0.1"), ("10.9.0.1", "10.0.0.1")),
        ("", "127.0.0.1", ("10.9.0.1",), ("127.0.0.1", "10.9.0.1")),
        ("", "head.example", ("10.9.0.1",), ("head.example", "10.9.0.1")),
        ("", "203.0.113.5", ("192.168.1.2",), ("192.168.1.2", "203.0.113.5")),
        ("0.0.0.0", "fd00::1", ("10.9.0.1",), ("10.9.0.1",)),
    ],
)
def test_all_its_addresses_are_told_best_first(data_host, seen, own, expected):
    assert told(data_host, Seen(seen), *own) == expected
