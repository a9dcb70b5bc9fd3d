"""The job's processor instructions: the lowest of its workers, until it has trained."""

from __future__ import annotations

from dtd.cluster.transitions import WorkerState
from dtd.wire import messages as m
from tests.unit.cluster.conftest import Driver


def level(driver: Driver, name: str) -> str:
    """What the last PREPARE to a worker names."""
    return driver.told(name, m.Prepare)[-1].instructions


def test_workers_that_are_there_begin_with_the_lowest_level(driver: Driver) -> None:
    driver.register("a", instructions="avx512")
    driver.register("b", instructions="avx2")
    driver.register("gpu", instructions="")
    driver.submit()
    assert {level(driver, name) for name in ("a", "b", "gpu")} == {"avx2"}
    assert "b has no better" in driver.told_of("instructions_lowered")[-1].message


def test_those_that_have_warmed_up_for_more_begin_again(driver: Driver) -> None:
    driver.submit(min_workers=2)
    driver.register("a", instructions="avx512")
    driver.warmed("a")
    driver.register("b", instructions="default")
    assert driver.told("a", m.Release)
    assert level(driver, "b") == "default"
    driver.lost("a")
    driver.register("a", incarnation=2, instructions="avx512")
    assert level(driver, "a") == "default"


def test_a_job_that_has_trained_keeps_its_level(driver: Driver) -> None:
    driver.submit()
    driver.register("a", instructions="avx2")
    driver.warmed("a")
    driver.all_run("a")
    driver.register("old", instructions="default")
    driver.register("new", instructions="avx512")
    assert driver.cluster.workers["old"].state is WorkerState.IDLE
    assert "dtdctl resume j-1" in driver.cluster.workers["old"].reason
    assert level(driver, "new") == "avx2"


def test_workers_of_other_kinds_choose_for_themselves(driver: Driver) -> None:
    driver.register("arm")
    driver.submit()
    assert level(driver, "arm") == ""
    assert not driver.told_of("instructions_lowered")


def test_a_level_does_not_rise_again_and_costs_nobody_a_second_start(driver: Driver) -> None:
    driver.submit(min_workers=3)
    driver.register("old", instructions="default")
    driver.register("gpu")
    driver.warmed("gpu")
    driver.lost("old")
    driver.register("new", instructions="avx2")
    assert level(driver, "new") == "default"
    assert not driver.told("gpu", m.Release)


def test_with_parameter_servers_only_they_have_to_agree(driver: Driver) -> None:
    driver.submit(strategy={"name": "sharded", "owners": "servers"})
    driver.register("old", instructions="default")
    driver.register("ps-1", instructions="avx2", serves=True)
    driver.register("ps-2", instructions="avx512", serves=True)
    assert {level(driver, name) for name in ("ps-1", "ps-2")} == {"avx2"}
    assert level(driver, "old") == ""
    driver.warmed("old", numerics_fingerprint="")
    for name in ("ps-1", "ps-2"):
        driver.warmed(name)
    driver.all_run("old", "ps-1", "ps-2")
    driver.register("older", instructions="default")
    assert driver.cluster.workers["older"].state is WorkerState.WARMING
