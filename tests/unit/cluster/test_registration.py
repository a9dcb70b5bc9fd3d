"""Workers that come: names, releases, and jobs of another store."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.events import ResumeRequested, Submitted
from dtd.cluster.records import Job
from dtd.cluster.state import CoordinatorIdentity
from dtd.cluster.workers import registration
from dtd.wire import messages as m

# --- a name belongs to one living worker; its successor in the same state directory takes it -----


def coming(incarnation: int, instance: str) -> m.Register:
    return m.Register(
        name="a",
        incarnation=incarnation,
        pid=1,
        host="h",
        device="cpu",
        data_host="h",
        data_port=1,
        version="0",
        instance=instance,
    )


def taken(driver: Any, incarnation: int = 2, instance: str = "elsewhere") -> bool:
    return (
        registration.name_holder(driver.cluster, coming(incarnation, instance), driver.now)
        is not None
    )


def test_the_later_of_two_is_not_let_in(driver: Any) -> None:
    assert not taken(driver)
    driver.submit()
    driver.register("a", instance="here")
    driver.warmed("a")
    driver.all_run("a")
    assert taken(driver)
    assert not taken(driver, incarnation=1)  # the same process calls again


def test_the_successor_in_the_same_directory_replaces_its_dead_self_at_once(driver: Any) -> None:
    driver.register("a", instance="here")
    assert not taken(driver, instance="here")


def test_a_member_whose_connection_is_lost_keeps_its_name_while_it_is_expected(driver: Any) -> None:
    driver.submit()
    driver.register("a", instance="here")
    driver.warmed("a")
    driver.all_run("a")
    driver.lost("a", farewell=False)
    assert driver.state("a") == "away"
    assert taken(driver)
    driver.silence(3.0)
    assert driver.state("a") == "lost"
    assert not taken(driver)


def test_a_coordinator_that_starts_knows_whose_names_are_taken(driver: Any, make_desk: Any) -> None:
    job = driver.submit()
    driver.register("a", instance="here")
    driver.warmed("a")
    driver.all_run("a")
    assert job.instances == ("here",)
    later = make_desk(last_generation=1)
    later.handle(Submitted(job=job))
    assert later.state("a") == "away"
    assert taken(later)
    assert not taken(later, instance="here")
    job.instances = ()  # as an older store has it
    older = make_desk(last_generation=1)
    older.handle(Submitted(job=job))
    assert not taken(older)


# --- another release is refused and gets no work; another patch level is only mentioned ----------


HERE = CoordinatorIdentity(version="0.2.1", host="head")


@pytest.fixture
def versioned(make_desk):
    return make_desk(identity=HERE)


def register(versioned, version, name="a", **more):
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
    versioned.say(name, m.Register(**values, **more))


@pytest.mark.parametrize("version", ["0.2.1", "0.2.0", "0.2.9", "0.2"])
def test_every_patch_level_of_the_release_may_work(versioned, version):
    register(versioned, version)
    assert versioned.state("a") == "idle"
    (registered,) = versioned.told("a", m.Registered)
    assert registered.refused == ""
    (incident,) = versioned.told_of("worker_registered")
    noted = "" if version == "0.2.1" else f" with dtd {version}, the coordinator has 0.2.1"
    assert incident.message == f"a registered{noted}"


@pytest.mark.parametrize("version", ["0.1.1", "0.3.0", "1.2.1", "0", "unknown", ""])
def test_another_release_is_refused_with_both_versions_hosts_and_what_to_do(versioned, version):
    register(versioned, version)
    (registered,) = versioned.told("a", m.Registered)
    why = registered.refused
    assert why.startswith(f"a on node runs dtd {version}, the coordinator on head runs dtd 0.2.1:")
    assert "install dtd 0.2.1 on node" in why
    assert (versioned.state("a"), versioned.cluster.workers["a"].reason) == ("refused", why)
    assert [incident.message for incident in versioned.told_of("worker_refused")] == [
        f"a is refused: {why}"
    ]


def test_a_worker_that_is_refused_gets_no_job_and_stays_refused_after_it(versioned):
    register(versioned, "0.1.0", "stranger")
    versioned.submit()
    register(versioned, "0.2.1", "a")
    versioned.warmed("a")
    number = versioned.all_run("a")
    versioned.finished("a", generation=number)
    assert [job.state.value for job in versioned.ended] == ["done"]
    assert versioned.told("stranger", m.Prepare) == versioned.told("stranger", m.Release) == []
    assert versioned.state("stranger") == "refused"


def test_a_generation_that_outlives_an_upgrade_goes_on(make_desk):
    """The coordinator alone was upgraded: its workers end the job, and are asked after it."""
    old = make_desk()
    old.submit()
    number = old.run_generation("a")
    versioned = make_desk(identity=HERE, last_generation=number)
    job = old.cluster.job
    versioned.submit(job.id).generation = number
    more = {"job": job.id, "generation": number, "roster_id": 5, "phase": "running"}
    register(versioned, "0.1.0", "a", **more)
    assert versioned.told("a", m.Freeze)
    assert versioned.state("a") == "warming"


# --- workers that come with a job of the same id of another coordinator's store ------------------


OURS = "store-a.1.j-1.0f"
THEIRS = "store-b.1.j-1.0f"


def submit(driver: Any) -> None:
    elastic = {"min_workers": 1, "max_workers": 64, "settle_s": 0.0, "warmup_timeout_s": 120.0}
    spec = {"job": {"name": "j"}, "elastic": elastic}
    job = Job(id="j-1", spec=spec, identity=OURS, from_job="j-0", from_identity="store-a.1.j-0.0f")
    driver.handle(Submitted(job=job))


def test_worker_of_a_namesake_of_the_job_is_let_go_with_what_it_holds(driver: Any) -> None:
    submit(driver)
    driver.register("a", job="j-1", generation=3, identity=THEIRS)
    (release,) = driver.told("a", m.Release)
    assert (release.state, "another coordinator's store" in release.reason) == ("unknown", True)
    assert driver.cluster.run.highest == 0
    assert not driver.told("a", m.Freeze)


def test_what_a_stray_says_of_the_job_does_not_count(driver: Any) -> None:
    submit(driver)
    driver.register("a", job="j-1", generation=3, identity=THEIRS)
    driver.saved_checkpoint("a", generation=3, step=8)
    driver.froze("a", generation=3, step=9)
    driver.say("a", m.Failed(job="j-1", reason="of its own", traceback=""))
    assert (driver.cluster.job.checkpoint_step, driver.cluster.job.step) == (0, 0)
    assert driver.state("a") == "released"
    assert not driver.ended


def test_a_worker_that_was_set_aside_and_comes_with_another_release_gets_no_work(versioned):
    """Neither when its pause is over, nor from the next job."""
    versioned.submit()
    register(versioned, "0.2.1", "a")
    versioned.warmed("a")
    versioned.all_run("a")
    register(versioned, "0.2.1", "b")
    versioned.say("b", m.Failed(job="j-1", reason="no versioned", traceback=""))
    assert "b" in versioned.cluster.set_aside
    versioned.lost("b")
    prepared = len(versioned.told("b", m.Prepare))
    register(versioned, "0.1.0", "b")
    versioned.tick(versioned.now + 15.0)
    assert len(versioned.told("b", m.Prepare)) == prepared
    versioned.finished("a", generation=versioned.cluster.run.generation)
    assert [job.state.value for job in versioned.ended] == ["done"]
    assert versioned.state("b") == "refused"


def test_namesake_is_no_member_that_comes_back(driver: Any) -> None:
    submit(driver)
    driver.warm_up("a")
    driver.handle(ResumeRequested(job="j-1"))  # nobody has what it is to start from
    driver.all_run("a")
    driver.lost("a", farewell=False)
    driver.back("a", identity=THEIRS)
    assert driver.told("a", m.Release)[-1].state == "unknown"
    driver.register("a", job="j-1", generation=1, identity=OURS)
    assert driver.told("a", m.Freeze)
