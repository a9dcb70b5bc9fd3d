"""Parameter servers: who is in a generation, who owns the state, and what a job waits for."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.generation import roster, states
from dtd.cluster.records import Worker
from dtd.engine.shards import NOTHING, WHOLE, Division, ShardSet, united
from dtd.errors import ProtocolError
from dtd.wire import messages as m
from tests.registrations import registration

WORKERS = ("a", "b", "c")
SERVERS = ("ps-1", "ps-2")
ALL = (*WORKERS, *SERVERS)


def warm_up(driver: Any, *names: str) -> None:
    for name in names:
        driver.register(name, serves=name.startswith("ps"))
    for name in names:
        driver.warmed(name)


def submit(driver: Any, **more: Any) -> None:
    driver.submit(strategy={"name": "sharded", "owners": "servers", "mirrors": 1}, **more)


def running(driver: Any, *names: str, **more: Any) -> int:
    submit(driver, **more)
    warm_up(driver, *(names or ALL))
    return int(driver.all_run(*(names or ALL)))


def roster_of(driver: Any, name: str = "a") -> list[tuple[str, bool]]:
    return [(one.name, one.serves) for one in driver.told(name, m.Assign)[-1].roster]


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


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_if_all_own_a_segments_owner_holds_it_first(world_size: int) -> None:
    division = Division(world_size=world_size, mirrors=0)
    for segment in range(division.segments):
        assert division.held(division.owner(segment)) == [segment]


def test_no_shards_are_told_from_all_of_them() -> None:
    assert NOTHING.to_wire() == [0, 1, 0, 1]
    assert ShardSet.from_wire(NOTHING.to_wire()) == NOTHING
    with pytest.raises(ProtocolError):
        ShardSet.from_wire([*NOTHING.to_wire(), *NOTHING.to_wire()])


# --- members -----------------------------------------------------------------------------------


def test_servers_are_the_last_ranks(driver: Any) -> None:
    submit(driver, min_workers=2)
    warm_up(driver, "ps-1", "a", "z")
    driver.all_run("a", "z", "ps-1")
    assert roster_of(driver) == [("a", False), ("z", False), ("ps-1", True)]
    assert driver.cluster.job.servers == 1
    (began,) = driver.told_of("generation_running")
    assert "runs with 2 workers and 1 parameter server from" in began.message
    assert (began.details["world_size"], began.details["servers"]) == (3, 1)


def test_a_server_takes_no_part_in_other_jobs(driver: Any) -> None:
    driver.submit(min_workers=1)
    warm_up(driver, "a")
    driver.register("ps-1", serves=True)
    driver.all_run("a")
    assert not driver.told("ps-1", m.Prepare)
    assert driver.state("ps-1") == "idle"
    assert "waits for a job with [strategy] owners" in driver.cluster.workers["ps-1"].reason


def test_a_job_waits_for_a_server(driver: Any) -> None:
    submit(driver, min_workers=1)
    warm_up(driver, "a")
    assert "no parameter server is ready" in driver.core.explain()
    warm_up(driver, "ps-1")
    driver.all_run("a", "ps-1")


def test_servers_do_not_count_towards_the_most_workers(driver: Any) -> None:
    number = running(driver, "a", "b", "ps-1", max_workers=2)
    warm_up(driver, "c")
    driver.tick(60.0)
    assert driver.cluster.run.generation == number
    assert not driver.told("a", m.Freeze)
    warm_up(driver, "ps-2")
    driver.tick(120.0)
    assert "ps-2 joins" in driver.told("a", m.Freeze)[-1].reason


def worker(name: str) -> Worker:
    serves = name.startswith("ps")
    return Worker(registration=registration(name=name, incarnation=1, serves=serves))


def chosen(*names: str, bad: tuple[tuple[str, str], ...] = ()) -> roster.Choice:
    return roster.choose(
        map(worker, names), start=(0, 0), max_workers=64, bad_links={pair: pair for pair in bad}
    )


def test_a_bad_link_moves_no_server_between_workers() -> None:
    found = chosen("a", "b", "c", "d", "ps-1", "ps-2", bad=(("a", "b"),))
    assert [one.name for one in found.members] == ["a", "c", "b", "d", "ps-1", "ps-2"]


def test_a_worker_without_a_link_to_a_server_stays_out() -> None:
    found = chosen("a", "b", "c", "ps-1", "ps-2", bad=(("b", "ps-1"), ("b", "ps-2")))
    assert [one.name for one in found.members] == ["a", "c", "ps-1", "ps-2"]
    assert [one.name for one in found.barred] == ["b"]


# --- what is held ------------------------------------------------------------------------------


def test_the_loss_of_a_server_costs_no_step(driver: Any) -> None:
    number = running(driver)
    driver.commit(5)
    assert states.redundancy(driver.cluster.job, ALL) == 1
    driver.lost("ps-2")
    for name in (*WORKERS, "ps-1"):
        froze(driver, name, number, 5)
    assign = driver.told("a", m.Assign)[-1]
    assert (assign.held_generation, assign.held_step) == (number, 5)
    assert roster_of(driver) == [("a", False), ("b", False), ("c", False), ("ps-1", True)]
    assert all(one.holds for one in assign.roster), "survivors copy nothing"
