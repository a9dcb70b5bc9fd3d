from typing import Any

import pytest

from dtd.cluster import admission
from dtd.cluster.events import CancelRequested, DrainRequested, Revoked
from dtd.wire import messages as m


def held(generation: int, step: int, where: str = "checkpoint") -> tuple[m.Held, ...]:
    return (m.Held(job="j-1", generation=generation, step=step, digest="", where=where),)


# --- registering -----------------------------------------------------------------------------


def test_worker_without_a_job_is_idle(desk: Any) -> None:
    desk.register("a")
    assert desk.state("a") == "idle"
    (answer,) = desk.told("a", m.Registered)
    assert (answer.heartbeat_interval_s, answer.heartbeat_timeout_s) == (0.25, 1.5)


def test_worker_that_comes_while_a_job_is_on_warms_up(desk: Any) -> None:
    desk.submit()
    desk.register("a")
    assert desk.state("a") == "warming"
    assert len(desk.told("a", m.Prepare)) == 1


def test_new_incarnation_replaces_the_old_one(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    desk.register("b", incarnation=2)
    assert "worker_lost" in desk.kinds()
    assert [one.at_boundary for one in desk.told("a", m.Freeze)] == [False]
    desk.lost("b", incarnation=1)
    assert desk.state("b") == "warming"


def test_loss_of_a_stranger_is_no_event(desk: Any) -> None:
    desk.lost("nobody")
    assert desk.incidents == []


def test_worker_is_lost_once(desk: Any) -> None:
    desk.register("a")
    desk.lost("a")
    desk.lost("a")
    assert desk.kinds().count("worker_lost") == 1


def test_nobody_is_prepared_for_a_job_that_stops(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    desk.handle(CancelRequested(job="j-1"))
    desk.register("b")
    assert desk.state("b") == "idle"


def test_long_gone_workers_are_forgotten(desk: Any) -> None:
    for number in range(admission.MAX_KNOWN_WORKERS + 5):
        desk.register(f"w-{number}")
        desk.lost(f"w-{number}")
    assert len(desk.cluster.workers) == admission.MAX_KNOWN_WORKERS
    assert "w-0" not in desk.cluster.workers


def test_who_is_forgotten_is_not_set_aside_either(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    for number in range(admission.MAX_KNOWN_WORKERS + 5):
        desk.register(f"w-{number}")
        desk.say(f"w-{number}", m.Failed(job="j-1", reason="no driver", traceback="", step=0))
        desk.lost(f"w-{number}")
    assert len(desk.cluster.workers) == admission.MAX_KNOWN_WORKERS
    assert desk.cluster.isolation.set_aside.keys() == desk.cluster.workers.keys() - {"a"}


def test_who_comes_again_is_remembered_however_many_there_were(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    for number in range(admission.MAX_KNOWN_WORKERS - 1):
        desk.register(f"w-{number}")
        desk.say(f"w-{number}", m.Failed(job="j-1", reason="no driver", traceback="", step=0))
        desk.lost(f"w-{number}")
    desk.register("w-0", incarnation=2)
    assert desk.state("w-0") == "refused"
    assert len(desk.cluster.workers) == admission.MAX_KNOWN_WORKERS


# --- coming back -----------------------------------------------------------------------------


def test_worker_of_a_job_that_is_over_starts_afresh(desk: Any) -> None:
    desk.register("a", job="j-0", generation=3)
    (release,) = desk.told("a", m.Release)
    assert release.state == "unknown"
    assert desk.state("a") == "released"


def test_worker_that_comes_back_freezes_and_keeps_what_it_holds(desk: Any) -> None:
    desk.cluster.run.generation = 3  # of an earlier life of the coordinator
    desk.submit()
    desk.register("a", job="j-1", generation=3)
    (freeze,) = desk.told("a", m.Freeze)
    assert (freeze.generation, freeze.at_boundary) == (3, False)
    assert desk.core.explain() == "waiting for a to leave the last generation"
    desk.froze("a", generation=3, step=6)
    (assign,) = desk.told("a", m.Assign)
    assert (assign.generation, assign.held_generation, assign.held_step) == (4, 3, 6)


def test_finished_worker_comes_back_with_its_last_step(desk: Any) -> None:
    desk.cluster.run.generation = 3  # of an earlier life of the coordinator
    desk.submit()
    desk.register("a", job="j-1", generation=3)
    desk.finished("a", generation=3, step=10)
    (assign,) = desk.told("a", m.Assign)
    assert (assign.held_generation, assign.held_step) == (3, 10)


def test_number_reported_by_one_worker_does_not_disturb_a_running_generation(desk: Any) -> None:
    """A coordinator that has lost its file hears of generations it has not announced."""
    desk.submit()
    number = desk.run_generation("a")
    desk.register("b", job="j-1", generation=40)
    assert desk.cluster.run.generation == number
    desk.froze("b", generation=40, step=1, held_generation=0)
    desk.froze("a", generation=number, step=1)
    assert desk.cluster.run.generation == 41


def test_worker_that_comes_back_and_hangs_is_given_up_soon(desk: Any) -> None:
    desk.submit()
    desk.warm_up("a")
    desk.register("b", job="j-1", generation=3)
    desk.tick(11.5)
    assert [one.name for one in desk.disconnected] == ["b"]
    assert "its training hangs" in desk.cluster.workers["b"].reason


def test_one_who_comes_back_in_a_long_step_is_given_time_to_freeze(desk: Any) -> None:
    """Its training thread looks at the ring once a step; its memory may be the newest."""
    desk.cluster.run.generation = 3  # of an earlier life of the coordinator
    desk.submit()
    desk.register("b", job="j-1", generation=3)
    desk.say("b", m.Heartbeat(state="running", step_s=2.0))
    desk.silence(19.5, "b", step_s=2.0)
    assert desk.disconnected == []
    desk.silence(20.5, "b", step_s=2.0)
    assert [one.name for one in desk.disconnected] == ["b"]


def test_who_comes_back_from_replicas_that_differed_starts_afresh(desk: Any) -> None:
    """Nobody can say whether its memory is right, and it would be the newest."""
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.lost("c")
    for name in "ab":
        desk.froze(name, generation=number, step=2, evidence="diverged", where="checkpoint")
    desk.register("c", job="j-1", generation=number)
    desk.froze("c", generation=number, step=7, held_generation=number)
    assert [one.state for one in desk.told("c", m.Release)] == ["evicted"]
    assert desk.state("c") == "lost"


def test_what_a_returning_worker_says_of_its_data_is_remembered(desk: Any) -> None:
    """After a bounce of the coordinator a newcomer must still be compared with somebody."""
    desk.submit()
    desk.register("a", job="j-1", generation=3)
    desk.warmed("a")
    assert desk.state("a") == "warming"
    desk.froze("a", generation=3, step=6)
    desk.register("b")
    desk.warmed("b", dataset_rows=7)
    assert desk.state("b") == "refused"


# --- warming up ------------------------------------------------------------------------------


def test_warm_worker_reports_what_it_holds(make_desk: Any) -> None:
    desk = make_desk(last_generation=2)
    job = desk.submit(min_workers=2)
    job.generation, job.in_doubt = 2, True
    desk.register("a")
    desk.warmed("a", held=held(2, 6))
    assert desk.state("a") == "ready"
    assert desk.cluster.workers["a"].holdings.held == held(2, 6)[0]
    assert job.total_steps == 10_000


@pytest.mark.parametrize("job", ["j-0", "j-1"])
def test_late_or_foreign_warmth_is_ignored(desk: Any, job: str) -> None:
    desk.submit(min_workers=3)
    desk.warm_up("a")
    desk.warmed("a", job=job, steps_total=99)
    assert desk.cluster.job.total_steps == 10_000
    desk.register("b")
    desk.warmed("b", job="j-0")
    assert desk.state("b") == "warming"


def test_warmth_without_a_job_is_ignored(desk: Any) -> None:
    desk.warm_up("a")
    assert desk.state("a") == "idle"


def test_warming_may_be_silent_for_longer_than_training(desk: Any) -> None:
    desk.submit()
    desk.register("a")
    desk.silence(29.0)
    assert desk.state("a") == "warming"
    desk.silence(33.0)
    assert desk.state("a") == "lost"


def test_warming_for_too_long_is_given_up(desk: Any) -> None:
    desk.submit(warmup_timeout_s=20.0)
    desk.register("a")
    desk.tick(20.0)
    assert desk.state("a") == "warming"
    desk.tick(22.0)
    assert desk.state("a") == "lost"
    assert "elastic.warmup_timeout_s" in desk.cluster.workers["a"].reason


# --- who may train with whom -----------------------------------------------------------------


def test_newcomer_that_differs_from_those_who_train_is_refused(desk: Any) -> None:
    job = desk.submit()
    desk.run_generation("b")
    desk.register("a")
    desk.warmed("a", numerics_fingerprint="arm", steps_total=99)
    assert desk.state("a") == "refused"
    assert "arm, not n" in desk.cluster.workers["a"].reason
    assert job.total_steps == 10_000


def test_before_anybody_has_trained_the_majority_decides(desk: Any) -> None:
    job = desk.submit(min_workers=2)
    for name in "abc":
        desk.register(name)
    desk.warmed("a", dataset_rows=7, steps_total=3)
    assert desk.state("a") == "ready"
    desk.warmed("b")
    desk.warmed("c")
    assert [desk.state(name) for name in "abc"] == ["refused", "forming", "forming"]
    assert job.total_steps == 10_000


def test_refused_worker_is_looked_at_again_when_the_other_is_gone(desk: Any) -> None:
    desk.submit(min_workers=2)
    for name in "ab":
        desk.register(name)
    desk.warmed("a", dataset_rows=7)
    desk.warmed("b")
    assert [desk.state(name) for name in "ab"] == ["ready", "refused"]
    assert "b is refused: its dataset has 100 rows" in desk.core.explain()
    desk.handle(DrainRequested(name="a"))
    assert [desk.state(name) for name in "ab"] == ["released", "ready"]
    assert desk.cluster.workers["b"].reason == ""
    assert desk.kinds().count("worker_refused") == 1


# --- leaving ---------------------------------------------------------------------------------


def test_worker_that_holds_nothing_leaves_at_once(desk: Any) -> None:
    desk.submit(min_workers=2)
    desk.register("a")
    desk.say("a", m.Leave(reason="stop"))
    assert desk.told("a", m.Release) == [m.Release(job="j-1", state="left", reason="stop")]


def test_idle_worker_leaves_at_once(desk: Any) -> None:
    desk.register("a")
    desk.handle(DrainRequested(name="a"))
    assert desk.told("a", m.Release) == [
        m.Release(job="", state="left", reason="drained by the operator")
    ]


def test_member_leaves_at_the_step_boundary(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.handle(DrainRequested(name="a"))
    assert [one.leave for one in desk.told("a", m.Freeze)] == [True]
    assert [one.leave for one in desk.told("b", m.Freeze)] == [False]
    desk.froze("a", generation=number, step=3)
    assert desk.state("a") == "frozen"
    desk.froze("b", generation=number, step=3)
    assert desk.state("a") == "released"
    assert desk.cluster.run.roster == ["b"]


def test_member_that_asks_while_its_generation_forms_leaves_after_the_first_step(
    desk: Any,
) -> None:
    desk.submit()
    desk.warm_up("a", "b")
    desk.say("b", m.Leave(reason="stop"))
    assert desk.told("b", m.Freeze) == []
    desk.all_run("a", "b")
    assert [one.at_boundary for one in desk.told("b", m.Freeze)] == [True]


def test_the_only_one_who_remembers_stays_until_another_does(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.lost("a")
    desk.handle(DrainRequested(name="b"))
    desk.froze("b", generation=number, step=7)
    assert desk.cluster.run.roster == ["b"]
    alone = desk.all_run("b")
    assert [one.leave for one in desk.told("b", m.Freeze)][-1] is True
    desk.register("a", incarnation=2)
    desk.saved_checkpoint("b", generation=alone, step=8)
    desk.froze("b", generation=alone, step=8)
    assert desk.state("b") == "frozen"
    desk.warmed("a")
    assert desk.cluster.run.roster == ["a", "b"]
    together = desk.all_run("a", "b")
    for name in "ab":
        desk.froze(name, generation=together, step=9)
    assert desk.state("b") == "released"
    assert desk.cluster.run.roster == ["a"]


def test_the_only_worker_leaves_when_its_state_is_saved(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a")
    desk.say("a", m.Leave(reason="stop"))
    desk.saved_checkpoint("a", generation=number, step=3)
    desk.froze("a", generation=number, step=3)
    assert desk.state("a") == "released"


def test_the_only_one_who_can_commit_a_step_stays(desk: Any) -> None:
    """Who died may have committed it; the checkpoint is older."""
    job = desk.submit()
    number = desk.run_generation("a", "b")
    desk.saved_checkpoint("b", generation=number, step=3)
    desk.beat("b", step=4)
    desk.handle(DrainRequested(name="a"))
    desk.lost("b")
    desk.froze("a", generation=number, step=3, prepared=(number, 4))
    assert desk.state("a") == "forming"
    assert (job.start_step, job.steps_lost) == (4, 0)


def test_standby_leaves_although_it_remembers_something_old(desk: Any) -> None:
    desk.submit(max_workers=1)
    desk.run_generation("a")
    desk.register("b", job="j-1", generation=1)
    desk.handle(DrainRequested(name="b"))
    assert desk.state("b") == "warming"
    desk.froze("b", generation=1, step=0)
    assert desk.state("b") == "released"


def test_wish_to_leave_outlives_the_connection_but_not_the_process(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    desk.handle(DrainRequested(name="b"))
    desk.register("b", job="j-1", generation=1)
    assert desk.cluster.workers["b"].leaving
    desk.register("b", incarnation=2)
    assert not desk.cluster.workers["b"].leaving


def test_other_code_of_the_task_is_refused_with_both_names_and_what_to_do(desk: Any) -> None:
    desk.submit(min_workers=2)
    desk.register("a")
    desk.register("b")
    desk.warmed("a", task_digest="a1" * 32)
    desk.warmed("b", task_digest="b2" * 32, plan_digest="other, for that reason")
    (refused,) = desk.told_of("worker_refused")
    assert refused.message == (
        "b is refused: b has other code of the task (b2b2b2b2b2b2) than a (a1a1a1a1a1a1):"
        " have `dtdctl submit` ship it, or install the same version on both"
    )


def test_code_that_is_not_known_is_not_compared(desk: Any) -> None:
    desk.submit(min_workers=2)
    desk.register("a")
    desk.register("b")
    desk.warmed("a", task_digest="a1" * 32)
    desk.warmed("b")
    assert not desk.told_of("worker_refused")


def test_a_shipped_package_is_named_to_who_warms_up(desk: Any) -> None:
    job = desk.submit()
    job.package = "d" * 64
    desk.register("a")
    (prepare,) = desk.told("a", m.Prepare)
    assert prepare.package == "d" * 64


def test_who_loses_his_credential_is_evicted_and_nobody_waits_for_him(desk: Any) -> None:
    desk.register("a")
    desk.handle(Revoked(name="a", reason="the credential was revoked"))
    assert [(one.name, one.reason) for one in desk.disconnected] == [
        ("a", "the credential was revoked")
    ]
    assert desk.state("a") == "lost"
    desk.handle(Revoked(name="a", reason="again"))
    desk.handle(Revoked(name="nobody", reason="the credential was revoked"))
    assert len(desk.disconnected) == 1
