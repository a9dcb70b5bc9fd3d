"""Another release is refused and gets no work; another patch level is only mentioned."""

from __future__ import annotations

import pytest

from dtd.cluster.records import CoordinatorIdentity
from dtd.wire import messages as m

HERE = CoordinatorIdentity(version="0.2.1", host="head", store_id="store")


@pytest.fixture
def driver(make_desk):
    return make_desk(identity=HERE)


def register(driver, version, name="a", **more):
    values = {
        "name": name,
        "incarnation": 1,
        "pid": 1,
        "host": "node",
        "device": "cpu",
        "data_host": "h",
        "data_port": 1,
        "version": version,
    }
    driver.say(name, m.Register(**values, **more))


@pytest.mark.parametrize("version", ["0.2.1", "0.2.0", "0.2.9", "0.2"])
def test_every_patch_level_of_the_release_may_work(driver, version):
    register(driver, version)
    assert driver.state("a") == "idle"
    (registered,) = driver.told("a", m.Registered)
    assert registered.refused == ""
    (incident,) = driver.told_of("worker_registered")
    noted = "" if version == "0.2.1" else f" with dtd {version}, the coordinator has 0.2.1"
    assert incident.message == f"a registered{noted}"


@pytest.mark.parametrize("version", ["0.1.1", "0.3.0", "1.2.1", "0", "unknown", ""])
def test_another_release_is_refused_with_both_versions_hosts_and_what_to_do(driver, version):
    register(driver, version)
    (registered,) = driver.told("a", m.Registered)
    why = registered.refused
    assert why.startswith(f"a on node runs dtd {version}, the coordinator on head runs dtd 0.2.1:")
    assert "install dtd 0.2.1 on node" in why
    assert (driver.state("a"), driver.cluster.workers["a"].reason) == ("refused", why)
    assert [incident.message for incident in driver.told_of("worker_refused")] == [
        f"a is refused: {why}"
    ]


def test_a_worker_that_is_refused_gets_no_job_and_stays_refused_after_it(driver):
    register(driver, "0.1.0", "stranger")
    driver.submit()
    register(driver, "0.2.1", "a")
    driver.warmed("a")
    number = driver.all_run("a")
    driver.finished("a", generation=number)
    assert [job.state.value for job in driver.ended] == ["done"]
    assert driver.told("stranger", m.Prepare) == driver.told("stranger", m.Release) == []
    assert driver.state("stranger") == "refused"


def test_the_same_worker_is_taken_once_it_is_upgraded(driver):
    register(driver, "0.1.0")
    driver.lost("a")
    register(driver, "0.2.1")
    assert driver.state("a") == "idle"


def test_a_generation_that_outlives_an_upgrade_goes_on(make_desk):
    """The coordinator alone was upgraded: its workers end the job, and are asked after it."""
    old = make_desk()
    old.submit()
    number = old.run_generation("a")
    driver = make_desk(identity=HERE, last_generation=number)
    job = old.cluster.job
    driver.submit(job.id).generation = number
    more = {"job": job.id, "generation": number, "roster_id": 5, "phase": "running"}
    register(driver, "0.1.0", "a", **more)
    assert driver.told("a", m.Freeze)
    assert driver.state("a") == "warming"


def test_a_worker_that_was_set_aside_and_comes_with_another_release_gets_no_work(driver):
    """Neither when its pause is over, nor from the next job."""
    driver.submit()
    register(driver, "0.2.1", "a")
    driver.warmed("a")
    driver.all_run("a")
    register(driver, "0.2.1", "b")
    driver.say("b", m.Failed(job="j-1", reason="no driver", traceback=""))
    assert "b" in driver.cluster.set_aside
    driver.lost("b")
    prepared = len(driver.told("b", m.Prepare))
    register(driver, "0.1.0", "b")
    driver.tick(driver.now + 15.0)
    assert len(driver.told("b", m.Prepare)) == prepared
    driver.finished("a", generation=driver.cluster.run.generation)
    assert [job.state.value for job in driver.ended] == ["done"]
    assert driver.state("b") == "refused"
