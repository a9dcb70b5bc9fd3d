from typing import Any

from dtd.cluster.events import DrainRequested, Revoked, Ticked
from dtd.cluster.workers import admission
from dtd.wire import messages as m

# --- registering -----------------------------------------------------------------------------


def test_a_worker_that_is_forgotten_is_not_set_aside_either(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    for number in range(admission.MAX_KNOWN_WORKERS + 5):
        driver.register(f"w-{number}")
        driver.say(f"w-{number}", m.Failed(job="j-1", reason="no driver", traceback="", step=0))
        driver.lost(f"w-{number}")
    assert len(driver.cluster.workers) == admission.MAX_KNOWN_WORKERS
    assert driver.cluster.set_aside.keys() == driver.cluster.workers.keys() - {"a"}


# --- coming back -----------------------------------------------------------------------------


def test_worker_that_comes_back_and_hangs_is_given_up_soon(driver: Any) -> None:
    driver.submit()
    driver.warm_up("a")
    driver.register("b", job="j-1", generation=3)
    driver.tick(11.5)
    assert [one.name for one in driver.disconnected] == ["b"]
    assert "its training hangs" in driver.cluster.workers["b"].reason


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


def test_warming_for_too_long_is_given_up(driver: Any) -> None:
    driver.submit(warmup_timeout_s=20.0)
    driver.register("a")
    driver.tick(20.0)
    assert driver.state("a") == "warming"
    driver.tick(22.0)
    assert driver.state("a") == "lost"
    assert "elastic.warmup_timeout_s" in driver.cluster.workers["a"].reason


def test_warm_up_begins_once_the_worker_has_been_told(driver: Any) -> None:
    """PREPARE waits for a slow store; until it arrives, heartbeats say that the worker idles."""
    driver.submit(warmup_timeout_s=20.0)
    driver.register("a")
    for _ in range(4 * 30):
        driver.now += 0.25
        driver.say("a", m.Heartbeat(state="idle"))
        driver.handle(Ticked())
    assert driver.state("a") == "warming"
    for _ in range(4 * 21):
        driver.now += 0.25
        driver.say("a", m.Heartbeat(state="warming"))
        driver.handle(Ticked())
    assert driver.state("a") == "lost"


def test_warm_up_that_computes_slowly_goes_on_and_ends_once_it_only_polls(driver: Any) -> None:
    driver.submit(warmup_timeout_s=20.0, busy_timeout_s=1800.0)
    driver.register("a")
    for _ in range(4 * 60):
        driver.now += 0.25
        driver.beat("a", cpu_s=1.0 + 0.03 * driver.now)
        driver.handle(Ticked())
    assert driver.state("a") == "warming"
    for beat in range(4 * 60):
        driver.now += 0.25
        driver.beat("a", cpu_s=3.0 + 0.0001 * beat)
        driver.handle(Ticked())
    assert driver.state("a") == "lost"


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


def test_the_last_one_leaves_when_it_has_written_its_state(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    for name in "ab":
        driver.handle(DrainRequested(name=name))
    driver.froze("a", generation=number, step=7)
    driver.froze("b", generation=number, step=7)
    (order,) = driver.told("a", m.Save) + driver.told("b", m.Save)
    assert (order.generation, order.step) == (number, 7)
    assert driver.cluster.waiting.reason == "saving step 7: a writes it before it leaves"
    assert [driver.state(name) for name in "ab"] == ["frozen", "frozen"]
    driver.saved_checkpoint("a", generation=number, step=7)
    assert [driver.state(name) for name in "ab"] == ["released", "released"]


def test_the_last_one_that_cannot_write_trains_on_and_hands_its_state_over(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("b")
    driver.handle(DrainRequested(name="b"))
    driver.froze("b", generation=number, step=7)
    driver.say("b", m.Notice(job="j-1", event="checkpoint_failed", message="disk full"))
    assert driver.cluster.run.roster == ["b"]
    alone = driver.all_run("b")
    assert [one.leave for one in driver.told("b", m.Freeze)][-1] is True
    driver.register("a")
    driver.warmed("a")
    driver.froze("b", generation=alone, step=8)
    assert driver.cluster.run.roster == ["a", "b"]
    together = driver.all_run("a", "b")
    for name in "ab":
        driver.froze(name, generation=together, step=9)
    assert driver.state("b") == "released"
    assert driver.cluster.run.roster == ["a"]


def test_the_last_one_that_has_written_waits_for_an_heir_that_warms_up(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("b")
    driver.register("a")
    driver.handle(DrainRequested(name="b"))
    driver.froze("b", generation=number, step=7)
    driver.saved_checkpoint("b", generation=number, step=7)
    assert driver.state("b") == "frozen"
    driver.warmed("a")
    assert driver.cluster.run.roster == ["a", "b"]


def test_standby_leaves_although_it_remembers_something_old(driver: Any) -> None:
    driver.submit(max_workers=1)
    driver.run_generation("a")
    driver.register("b", job="j-1", generation=1)
    driver.handle(DrainRequested(name="b"))
    assert driver.state("b") == "warming"
    driver.froze("b", generation=1, step=0)
    assert driver.state("b") == "released"


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
