"""Parameter servers: who is in a generation, who owns the state, and what a job waits for."""

from __future__ import annotations

from typing import Any

from dtd.cluster import roster
from dtd.cluster.records import Worker
from dtd.engine.shards import NOTHING, WHOLE, Division, ShardSet, united
from dtd.wire import messages as m
from tests.registrations import registration

WORKERS = ("a", "b", "c")
SERVERS = ("ps-1", "ps-2")
ALL = (*WORKERS, *SERVERS)


def submit(driver: Any, **more: Any) -> None:
    driver.submit(strategy={"name": "sharded", "owners": "servers", "mirrors": 1}, **more)


def froze(driver: Any, name: str, number: int, step: int, members: tuple[str, ...] = ALL) -> None:
    servers = sum(one.startswith("ps") for one in members)
    division = Division(world_size=len(members), mirrors=1, servers=servers)
    part = tuple(division.shards(members.index(name)).to_wire())
    held = m.Held(job="j-1", generation=number, step=step, digest="", where="memory", part=part)
    driver.froze(name, generation=number, step=step, held_generation=number, held=(held,))


# --- a division --------------------------------------------------------------------------------


def test_servers_hold_everything_and_others_nothing() -> None:
    division = Division(world_size=5, mirrors=1, servers=3)
    assert division.segments == 3
    assert [division.held(rank) for rank in range(5)] == [[], [], [0, 2], [1, 0], [2, 1]]
    assert [division.owner(segment) for segment in range(3)] == [2, 3, 4]
    assert (division.own(0), division.shards(1)) == (NOTHING, NOTHING)
    assert division.own(2) == ShardSet.segments([0], 3)
    assert united(division.shards(rank) for rank in (2, 4)) == WHOLE


# --- members -----------------------------------------------------------------------------------


def worker(name: str) -> Worker:
    serves = name.startswith("ps")
    return Worker(registration=registration(name=name, incarnation=1, serves=serves))


def chosen(*names: str, bad: tuple[tuple[str, str], ...] = ()) -> roster.Choice:
    return roster.choose(
        map(worker, names), start=(0, 0), max_workers=64, bad_links={pair: pair for pair in bad}
    )


def test_a_worker_without_a_link_to_a_server_stays_out() -> None:
    found = chosen("a", "b", "c", "ps-1", "ps-2", bad=(("b", "ps-1"), ("b", "ps-2")))
    assert [one.name for one in found.members] == ["a", "c", "ps-1", "ps-2"]
    assert [one.name for one in found.barred] == ["b"]
