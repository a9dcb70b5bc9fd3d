from typing import Any

from dtd.cluster.records import Recovery


def recovery(**more: Any) -> Recovery:
    values = {
        "cause": "b is lost: gone",
        "worker": "b",
        "began_at": 10.0,
        "detected_after_s": 1.52341,
        "at_boundary": False,
        "running": True,
        **more,
    }
    return Recovery(**values)


def test_details_are_figures_for_a_person() -> None:
    assert recovery(steps_redone=1, steps_lost=2).details(10.25) == {
        "cause": "b is lost: gone",
        "detected_after_s": 1.523,
        "recovered_after_s": 0.25,
        "steps_redone": 1,
        "steps_lost": 2,
    }


def test_what_breaks_on_the_way_to_a_boundary_is_what_is_told() -> None:
    one = recovery(at_boundary=True, cause="c joins", worker="")
    one.breaks("b is lost: gone", 12.0, worker="b", silent_s=1.5)
    assert (one.cause, one.worker, one.began_at) == ("b is lost: gone", "b", 12.0)
    assert (one.detected_after_s, one.at_boundary) == (1.5, False)


def test_first_cause_is_kept() -> None:
    one = recovery()
    one.breaks("d is lost: gone", 12.0, worker="d", silent_s=0.0)
    assert (one.cause, one.worker, one.began_at) == ("b is lost: gone", "b", 10.0)


# --- as the job recovers -----------------------------------------------------------------------


def test_recovery_is_told_once_when_the_job_commits_again(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.beat("a", step=4)
    driver.now = 0.25
    driver.lost("b")
    driver.now = 0.35
    for name in "ac":
        driver.froze(name, generation=number, step=4)
    driver.all_run("a", "c")
    driver.beat("a", step=4)
    assert driver.told_of("recovered") == []
    driver.now = 0.55
    driver.beat("a", step=5)
    driver.beat("c", step=6)
    (told,) = driver.told_of("recovered")
    assert (told.worker, told.step) == ("b", 5)
    assert told.details == {
        "cause": "b is lost: gone",
        "detected_after_s": 0.25,
        "recovered_after_s": 0.3,
        "steps_redone": 1,
        "steps_lost": 0,
    }


def test_step_that_all_hold_prepared_is_not_redone(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.lost("b")
    driver.froze("a", generation=number, step=4, prepared=(number, 5))
    driver.all_run("a")
    driver.beat("a", step=6)
    (told,) = driver.told_of("recovered")
    assert told.details["steps_redone"] == 0


def test_each_generation_that_breaks_in_a_step_redoes_it(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.lost("c")
    for name in "ab":
        driver.froze(name, generation=number, step=0)
    number = driver.all_run("a", "b")
    driver.lost("b")
    driver.froze("a", generation=number, step=0)
    driver.all_run("a")
    driver.beat("a", step=1)
    (told,) = driver.told_of("recovered")
    assert told.details["steps_redone"] == 2


def test_generation_that_never_ran_had_no_step_to_redo(driver: Any) -> None:
    driver.submit()
    driver.warm_up("a", "b")
    driver.lost("b")
    driver.froze("a", generation=1, step=0)
    driver.all_run("a")
    driver.beat("a", step=1)
    (told,) = driver.told_of("recovered")
    assert told.details["steps_redone"] == 0


def test_nothing_is_redone_at_a_boundary(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a")
    driver.warm_up("b")
    driver.froze("a", generation=number, step=3)
    driver.all_run("a", "b")
    driver.commit(4)
    (told,) = driver.told_of("recovered")
    assert (told.details["cause"], told.details["steps_redone"]) == ("b joins", 0)


def test_death_on_the_way_to_a_boundary_costs_a_step(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.warm_up("c")
    driver.lost("b")
    driver.froze("a", generation=number, step=0)
    driver.all_run("a", "c")
    driver.commit(1)
    (told,) = driver.told_of("recovered")
    assert (told.details["cause"], told.details["steps_redone"]) == ("b is lost: gone", 1)


def test_steps_lost_are_part_of_the_incident(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    driver.beat("a", step=6)
    driver.register("a", incarnation=2)
    driver.warmed("a")
    driver.all_run("a")
    driver.beat("a", step=1)
    (told,) = driver.told_of("recovered")
    assert told.details["steps_lost"] == 6


def test_silence_before_an_eviction_is_told(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.silence(1.75, "a")
    driver.froze("a", generation=number, step=0)
    driver.all_run("a")
    driver.beat("a", step=1)
    (told,) = driver.told_of("recovered")
    assert told.worker == "b"
    assert told.details["detected_after_s"] == 1.75


def test_neighbours_word_is_replaced_by_what_is_known_of_the_dead(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.froze("a", generation=number, step=0, suspect="b", evidence="reset")
    driver.lost("b")
    driver.all_run("a")
    driver.beat("a", step=1)
    (told,) = driver.told_of("recovered")
    assert told.details["cause"] == "b is lost: gone"
