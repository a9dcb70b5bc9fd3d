"""Workers that come with a job of the same id of another coordinator's store."""

from __future__ import annotations

from typing import Any

from dtd.cluster.events import ResumeRequested, Submitted
from dtd.cluster.records import Job
from dtd.wire import messages as m

OURS = "store-a.1.j-1.0f"
THEIRS = "store-b.1.j-1.0f"


def submit(driver: Any) -> None:
    elastic = {"min_workers": 1, "max_workers": 64, "settle_s": 0.0, "warmup_timeout_s": 120.0}
    spec = {"job": {"name": "j"}, "elastic": elastic}
    job = Job(id="j-1", spec=spec, identity=OURS, from_job="j-0", from_identity="store-a.1.j-0.0f")
    driver.handle(Submitted(job=job))


def test_identities_go_with_the_job(driver: Any) -> None:
    submit(driver)
    driver.register("a")
    (prepare,) = driver.told("a", m.Prepare)
    assert (prepare.identity, prepare.from_identity) == (OURS, "store-a.1.j-0.0f")


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
