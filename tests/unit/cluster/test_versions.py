"""Another release is refused and gets no work; another patch level is only mentioned."""

from __future__ import annotations

import pytest

from dtd.cluster.records import CoordinatorIdentity
from dtd.wire import messages as m

HERE = CoordinatorIdentity(version="0.2.1", host="head", store_id="store")


@pytest.fixture
def desk(make_desk):
    return make_desk(identity=HERE)


def register(desk, version, name="a", **more):
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
    desk.say(name, m.Register(**values, **more))


@pytest.mark.parametrize("version", ["0.2.1", "0.2.0", "0.2.9", "0.2"])
def test_every_patch_level_of_the_release_may_work(desk, version):
    register(desk, version)
    assert desk.state("a") == "idle"
    (registered,) = desk.told("a", m.Registered)
    assert registered.refused == ""
    (incident,) = desk.told_of("worker_registered")
    noted = "" if version == "0.2.1" else f" with dtd {version}, the coordinator has 0.2.1"
    assert incident.message == f"a registered{noted}"


@pytest.mark.parametrize("version", ["0.1.1", "0.3.0", "1.2.1", "0", "unknown", ""])
def test_another_release_is_refused_with_both_versions_hosts_and_what_to_do(desk, version):
    register(desk, version)
    (registered,) = desk.told("a", m.Registered)
    why = registered.refused
    assert why.startswith(f"a on node runs dtd {version}, the coordinator on head runs dtd 0.2.1:")
    assert "install dtd 0.2.1 on node" in why
    assert (desk.state("a"), desk.cluster.workers["a"].reason) == ("refused", why)
    assert [incident.message for incident in desk.told_of("worker_refused")] == [
        f"a is refused: {why}"
    ]


def test_who_is_refused_gets_no_job_and_stays_refused_after_it(desk):
    register(desk, "0.1.0", "stranger")
    desk.submit()
    register(desk, "0.2.1", "a")
    desk.warmed("a")
    number = desk.all_run("a")
    desk.finished("a", generation=number)
    assert [job.state.value for job in desk.ended] == ["done"]
    assert desk.told("stranger", m.Prepare) == desk.told("stranger", m.Release) == []
    assert desk.state("stranger") == "refused"


def test_the_same_worker_is_taken_once_it_is_upgraded(desk):
    register(desk, "0.1.0")
    desk.lost("a")
    register(desk, "0.2.1")
    assert desk.state("a") == "idle"


def test_a_generation_that_outlives_an_upgrade_goes_on(make_desk):
    """The coordinator alone was upgraded: its workers end the job, and are asked after it."""
    old = make_desk()
    old.submit()
    number = old.run_generation("a")
    desk = make_desk(identity=HERE, last_generation=number)
    job = old.cluster.job
    desk.submit(job.id).generation = number
    more = {"job": job.id, "generation": number, "roster_id": 5, "phase": "running"}
    register(desk, "0.1.0", "a", **more)
    assert desk.told("a", m.Freeze)
    assert desk.state("a") == "warming"


def test_who_was_set_aside_and_comes_with_another_release_gets_no_work(desk):
    """Neither when its pause is over, nor from the next job."""
    desk.submit()
    register(desk, "0.2.1", "a")
    desk.warmed("a")
    desk.all_run("a")
    register(desk, "0.2.1", "b")
    desk.say("b", m.Failed(job="j-1", reason="no driver", traceback=""))
    assert "b" in desk.cluster.isolation.set_aside
    desk.lost("b")
    prepared = len(desk.told("b", m.Prepare))
    register(desk, "0.1.0", "b")
    desk.tick(desk.now + 15.0)
    assert len(desk.told("b", m.Prepare)) == prepared
    desk.finished("a", generation=desk.cluster.run.generation)
    assert [job.state.value for job in desk.ended] == ["done"]
    assert desk.state("b") == "refused"
