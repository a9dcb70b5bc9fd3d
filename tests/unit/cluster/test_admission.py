from typing import Any

from dtd.cluster.events import DrainRequested, Revoked
from dtd.wire import messages as m

# --- coming back -----------------------------------------------------------------------------


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


# --- leaving ---------------------------------------------------------------------------------


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
