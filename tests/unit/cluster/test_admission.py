from typing import Any

import pytest

from dtd.cluster import admission
from dtd.cluster.events import CancelRequested, DrainRequested, Revoked
from dtd.wire import messages as m


def held(generation: int, step: int, where: str = "checkpoint") -> tuple[m.Held, ...]:
    return (m.Held(job="j-1", generation=generation, step=step, digest="", where=where),)


# --- registering -----------------------------------------------------------------------------


def test_worker_without_a_job_is_idle(driver: Any) -> None:
    driver.register("a")
    assert driver.state("a") == "idle"
    (answer,) = driver.told("a", m.Registered)
    assert (answer.heartbeat_interval_s, answer.heartbeat_timeout_s) == (0.25, 1.5)


def test_worker_that_comes_while_a_job_is_on_warms_up(driver: Any) -> None:
    driver.submit()
    driver.register("a")
    assert driver.state("a") == "warming"
    assert len(driver.told("a", m.Prepare)) == 1


def test_new_incarnation_replaces_the_old_one(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b")
    driver.register("b", incarnation=2)
    assert "worker_lost" in driver.kinds()
    assert [one.at_boundary for one in driver.told("a", m.Freeze)] == [False]
    driver.lost("b", incarnation=1)
    assert driver.state("b") == "warming"


def test_loss_of_a_stranger_is_no_event(driver: Any) -> None:
    driver.lost("nobody")
    assert driver.incidents == []


def test_worker_is_lost_once(driver: Any) -> None:
    driver.register("a")
    driver.lost("a")
    driver.lost("a")
    assert driver.kinds().count("worker_lost") == 1


def test_nobody_is_prepared_for_a_job_that_stops(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    driver.handle(CancelRequested(job="j-1"))
    driver.register("b")
    assert driver.state("b") == "idle"


def test_long_gone_workers_are_forgotten(driver: Any) -> None:
    for number in range(admission.MAX_KNOWN_WORKERS + 5):
        driver.register(f"w-{number}")
        driver.lost(f"w-{number}")
    assert len(driver.cluster.workers) == admission.MAX_KNOWN_WORKERS
    assert "w-0" not in driver.cluster.workers


def test_a_worker_that_is_forgotten_is_not_set_aside_either(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    for number in range(admission.MAX_KNOWN_WORKERS + 5):
        driver.register(f"w-{number}")
        driver.say(f"w-{number}", m.Failed(job="j-1", reason="no driver", traceback="", step=0))
        driver.lost(f"w-{number}")
    assert len(driver.cluster.workers) == admission.MAX_KNOWN_WORKERS
    assert driver.cluster.set_aside.keys() == driver.cluster.workers.keys() - {"a"}


def test_a_worker_that_comes_again_is_remembered_however_many_there_were(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    for number in range(admission.MAX_KNOWN_WORKERS - 1):
        driver.register(f"w-{number}")
        driver.say(f"w-{number}", m.Failed(job="j-1", reason="no driver", traceback="", step=0))
        driver.lost(f"w-{number}")
    driver.register("w-0", incarnation=2)
    assert driver.state("w-0") == "refused"
    assert len(driver.cluster.workers) == admission.MAX_KNOWN_WORKERS


# --- coming back -----------------------------------------------------------------------------


def test_worker_of_a_job_that_is_over_starts_afresh(driver: Any) -> None:
    driver.register("a", job="j-0", generation=3)
    (release,) = driver.told("a", m.Release)
    assert release.state == "unknown"
    assert driver.state("a") == "released"


def test_worker_that_comes_back_freezes_and_keeps_what_it_holds(driver: Any) -> None:
    driver.cluster.run.generation = 3  # of an earlier life of the coordinator
    driver.submit()
    driver.register("a", job="j-1", generation=3)
    (freeze,) = driver.told("a", m.Freeze)
    assert (freeze.generation, freeze.at_boundary) == (3, False)
    assert driver.core.explain() == "waiting for a to leave the last generation"
    driver.froze("a", generation=3, step=6)
    (assign,) = driver.told("a", m.Assign)
    assert (assign.generation, assign.held_generation, assign.held_step) == (4, 3, 6)


def test_finished_worker_comes_back_with_its_last_step(driver: Any) -> None:
    driver.cluster.run.generation = 3  # of an earlier life of the coordinator
    driver.submit()
    driver.register("a", job="j-1", generation=3)
    driver.finished("a", generation=3, step=10)
    (assign,) = driver.told("a", m.Assign)
    assert (assign.held_generation, assign.held_step) == (3, 10)


def test_number_reported_by_one_worker_does_not_disturb_a_running_generation(driver: Any) -> None:
    """A coordinator that has lost its file hears of generations it has not announced."""
    driver.submit()
    number = driver.run_generation("a")
    driver.register("b", job="j-1", generation=40)
    assert driver.cluster.run.generation == number
    driver.froze("b", generation=40, step=1, held_generation=0)
    driver.froze("a", generation=number, step=1)
    assert driver.cluster.run.generation == 41


def test_worker_that_comes_back_and_hangs_is_given_up_soon(driver: Any) -> None:
    driver.submit()
    driver.warm_up("a")
    driver.register("b", job="j-1", generation=3)
    driver.tick(11.5)
    assert [one.name for one in driver.disconnected] == ["b"]
    assert "its training hangs" in driver.cluster.workers["b"].reason


def test_one_that_comes_back_in_a_long_step_is_given_time_to_freeze(driver: Any) -> None:
    """Its training thread looks at the ring once a step; its memory may be the newest."""
    driver.cluster.run.generation = 3  # of an earlier life of the coordinator
    driver.submit()
    driver.register("b", job="j-1", generation=3)
    driver.say("b", m.Heartbeat(state="running", step_s=2.0))
    driver.silence(19.5, "b", step_s=2.0)
    assert driver.disconnected == []
    driver.silence(20.5, "b", step_s=2.0)
    assert [one.name for one in driver.disconnected] == ["b"]


def test_a_worker_that_comes_back_from_replicas_that_differed_starts_afresh(driver: Any) -> None:
    """Nobody can say whether its memory is right, and it would be the newest."""
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.lost("c")
    for name in "ab":
        driver.froze(name, generation=number, step=2, evidence="diverged", where="checkpoint")
    driver.register("c", job="j-1", generation=number)
    driver.froze("c", generation=number, step=7, held_generation=number)
    assert [one.state for one in driver.told("c", m.Release)] == ["evicted"]
    assert driver.state("c") == "lost"


def test_what_a_returning_worker_says_of_its_data_is_remembered(driver: Any) -> None:
    """After a bounce of the coordinator a newcomer must still be compared with somebody."""
    driver.submit()
    driver.register("a", job="j-1", generation=3)
    driver.warmed("a")
    assert driver.state("a") == "warming"
    driver.froze("a", generation=3, step=6)
    driver.register("b")
    driver.warmed("b", dataset_rows=7)
    assert driver.state("b") == "refused"


# --- warming up ------------------------------------------------------------------------------


def test_warm_worker_reports_what_it_holds(make_desk: Any) -> None:
    driver = make_desk(last_generation=2)
    job = driver.submit(min_workers=2)
    job.generation, job.in_doubt = 2, True
    driver.register("a")
    driver.warmed("a", held=held(2, 6))
    assert driver.state("a") == "ready"
    assert driver.cluster.workers["a"].holdings.held == held(2, 6)[0]
    assert job.total_steps == 10_000


@pytest.mark.parametrize("job", ["j-0", "j-1"])
def test_late_or_foreign_warmth_is_ignored(driver: Any, job: str) -> None:
    driver.submit(min_workers=3)
    driver.warm_up("a")
    driver.warmed("a", job=job, steps_total=99)
    assert driver.cluster.job.total_steps == 10_000
    driver.register("b")
    driver.warmed("b", job="j-0")
    assert driver.state("b") == "warming"


def test_warmth_without_a_job_is_ignored(driver: Any) -> None:
    driver.warm_up("a")
    assert driver.state("a") == "idle"


def test_warming_may_be_silent_for_longer_than_training(driver: Any) -> None:
    driver.submit()
    driver.register("a")
    driver.silence(29.0)
    assert driver.state("a") == "warming"
    driver.silence(33.0)
    assert driver.state("a") == "lost"


def test_warming_for_too_long_is_given_up(driver: Any) -> None:
    driver.submit(warmup_timeout_s=20.0)
    driver.register("a")
    driver.tick(20.0)
    assert driver.state("a") == "warming"
    driver.tick(22.0)
    assert driver.state("a") == "lost"
    assert "elastic.warmup_timeout_s" in driver.cluster.workers["a"].reason


# --- who may train with whom -----------------------------------------------------------------


def test_newcomer_that_differs_from_those_that_train_is_refused(driver: Any) -> None:
    job = driver.submit()
    driver.run_generation("b")
    driver.register("a")
    driver.warmed("a", numerics_fingerprint="arm", steps_total=99)
    assert driver.state("a") == "refused"
    assert "arm, not n" in driver.cluster.workers["a"].reason
    assert job.total_steps == 10_000


def test_before_anybody_has_trained_the_majority_decides(driver: Any) -> None:
    job = driver.submit(min_workers=2)
    for name in "abc":
        driver.register(name)
    driver.warmed("a", dataset_rows=7, steps_total=3)
    assert driver.state("a") == "ready"
    driver.warmed("b")
    driver.warmed("c")
    assert [driver.state(name) for name in "abc"] == ["refused", "forming", "forming"]
    assert job.total_steps == 10_000


def test_refused_worker_is_looked_at_again_when_the_other_is_gone(driver: Any) -> None:
    driver.submit(min_workers=2)
    for name in "ab":
        driver.register(name)
    driver.warmed("a", dataset_rows=7)
    driver.warmed("b")
    assert [driver.state(name) for name in "ab"] == ["ready", "refused"]
    assert "b is refused: its dataset has 100 rows" in driver.core.explain()
    driver.handle(DrainRequested(name="a"))
    assert [driver.state(name) for name in "ab"] == ["released", "ready"]
    assert driver.cluster.workers["b"].reason == ""
    assert driver.kinds().count("worker_refused") == 1


# --- leaving ---------------------------------------------------------------------------------


def test_worker_that_holds_nothing_leaves_at_once(driver: Any) -> None:
    driver.submit(min_workers=2)
    driver.register("a")
    driver.say("a", m.Leave(reason="stop"))
    assert driver.told("a", m.Release) == [m.Release(job="j-1", state="left", reason="stop")]


def test_idle_worker_leaves_at_once(driver: Any) -> None:
    driver.register("a")
    driver.handle(DrainRequested(name="a"))
    assert driver.told("a", m.Release) == [
        m.Release(job="", state="left", reason="drained by the operator")
    ]


def test_member_leaves_at_the_step_boundary(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.handle(DrainRequested(name="a"))
    assert [one.leave for one in driver.told("a", m.Freeze)] == [True]
    assert [one.leave for one in driver.told("b", m.Freeze)] == [False]
    driver.froze("a", generation=number, step=3)
    assert driver.state("a") == "frozen"
    driver.froze("b", generation=number, step=3)
    assert driver.state("a") == "released"
    assert driver.cluster.run.roster == ["b"]


def test_member_that_asks_while_its_generation_forms_leaves_after_the_first_step(
    driver: Any,
) -> None:
    driver.submit()
    driver.warm_up("a", "b")
    driver.say("b", m.Leave(reason="stop"))
    assert driver.told("b", m.Freeze) == []
    driver.all_run("a", "b")
    assert [one.at_boundary for one in driver.told("b", m.Freeze)] == [True]


def test_the_only_one_that_remembers_stays_until_another_does(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.lost("a")
    driver.handle(DrainRequested(name="b"))
    driver.froze("b", generation=number, step=7)
    assert driver.cluster.run.roster == ["b"]
    alone = driver.all_run("b")
    assert [one.leave for one in driver.told("b", m.Freeze)][-1] is True
    driver.register("a", incarnation=2)
    driver.saved_checkpoint("b", generation=alone, step=8)
    driver.froze("b", generation=alone, step=8)
    assert driver.state("b") == "frozen"
    driver.warmed("a")
    assert driver.cluster.run.roster == ["a", "b"]
    together = driver.all_run("a", "b")
    for name in "ab":
        driver.froze(name, generation=together, step=9)
    assert driver.state("b") == "released"
    assert driver.cluster.run.roster == ["a"]


def test_the_only_worker_leaves_when_its_state_is_saved(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a")
    driver.say("a", m.Leave(reason="stop"))
    driver.saved_checkpoint("a", generation=number, step=3)
    driver.froze("a", generation=number, step=3)
    assert driver.state("a") == "released"


def test_the_only_one_that_can_commit_a_step_stays(driver: Any) -> None:
    """The dead worker may have committed it; the checkpoint is older."""
    job = driver.submit()
    number = driver.run_generation("a", "b")
    driver.saved_checkpoint("b", generation=number, step=3)
    driver.beat("b", step=4)
    driver.handle(DrainRequested(name="a"))
    driver.lost("b")
    driver.froze("a", generation=number, step=3, prepared=(number, 4))
    assert driver.state("a") == "forming"
    assert (job.start_step, job.steps_lost) == (4, 0)


def test_standby_leaves_although_it_remembers_something_old(driver: Any) -> None:
    driver.submit(max_workers=1)
    driver.run_generation("a")
    driver.register("b", job="j-1", generation=1)
    driver.handle(DrainRequested(name="b"))
    assert driver.state("b") == "warming"
    driver.froze("b", generation=1, step=0)
    assert driver.state("b") == "released"


def test_wish_to_leave_outlives_the_connection_but_not_the_process(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b")
    driver.handle(DrainRequested(name="b"))
    driver.register("b", job="j-1", generation=1)
    assert driver.cluster.workers["b"].leaving
    driver.register("b", incarnation=2)
    assert not driver.cluster.workers["b"].leaving


def test_other_code_of_the_task_is_refused_with_both_names_and_what_to_do(driver: Any) -> None:
    driver.submit(min_workers=2)
    driver.register("a")
    driver.register("b")
    driver.warmed("a", task_digest="a1" * 32)
    driver.warmed("b", task_digest="b2" * 32, plan_digest="other, for that reason")
    (refused,) = driver.told_of("worker_refused")
    assert refused.message == (
        "b is refused: b has other code of the task (b2b2b2b2b2b2) than a (a1a1a1a1a1a1):"
        " have `dtdctl submit` ship it, or install the same version on both"
    )


def test_code_that_is_not_known_is_not_compared(driver: Any) -> None:
    driver.submit(min_workers=2)
    driver.register("a")
    driver.register("b")
    driver.warmed("a", task_digest="a1" * 32)
    driver.warmed("b")
    assert not driver.told_of("worker_refused")


def test_a_shipped_package_is_named_to_who_warms_up(driver: Any) -> None:
    job = driver.submit()
    job.package = "d" * 64
    driver.register("a")
    (prepare,) = driver.told("a", m.Prepare)
    assert prepare.package == "d" * 64


def test_a_worker_that_loses_its_credential_is_evicted_and_nobody_waits_for_it(driver: Any) -> None:
    driver.register("a")
    driver.handle(Revoked(name="a", reason="the credential was revoked"))
    assert [(one.name, one.reason) for one in driver.disconnected] == [
        ("a", "the credential was revoked")
    ]
    assert driver.state("a") == "lost"
    driver.handle(Revoked(name="a", reason="again"))
    driver.handle(Revoked(name="nobody", reason="the credential was revoked"))
    assert len(driver.disconnected) == 1
