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


def test_recovery_is_told_once_when_the_job_commits_again(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.beat("a", step=4)
    desk.now = 0.25
    desk.lost("b")
    desk.now = 0.35
    for name in "ac":
        desk.froze(name, generation=number, step=4)
    desk.all_run("a", "c")
    desk.beat("a", step=4)
    assert desk.told_of("recovered") == []
    desk.now = 0.55
    desk.beat("a", step=5)
    desk.beat("c", step=6)
    (told,) = desk.told_of("recovered")
    assert (told.worker, told.step) == ("b", 5)
    assert told.details == {
        "cause": "b is lost: gone",
        "detected_after_s": 0.25,
        "recovered_after_s": 0.3,
        "steps_redone": 1,
        "steps_lost": 0,
    }


def test_step_that_all_hold_prepared_is_not_redone(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.lost("b")
    desk.froze("a", generation=number, step=4, prepared=(number, 5))
    desk.all_run("a")
    desk.beat("a", step=6)
    (told,) = desk.told_of("recovered")
    assert told.details["steps_redone"] == 0


def test_each_generation_that_breaks_in_a_step_redoes_it(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.lost("c")
    for name in "ab":
        desk.froze(name, generation=number, step=0)
    number = desk.all_run("a", "b")
    desk.lost("b")
    desk.froze("a", generation=number, step=0)
    desk.all_run("a")
    desk.beat("a", step=1)
    (told,) = desk.told_of("recovered")
    assert told.details["steps_redone"] == 2


def test_generation_that_never_ran_had_no_step_to_redo(desk: Any) -> None:
    desk.submit()
    desk.warm_up("a", "b")
    desk.lost("b")
    desk.froze("a", generation=1, step=0)
    desk.all_run("a")
    desk.beat("a", step=1)
    (told,) = desk.told_of("recovered")
    assert told.details["steps_redone"] == 0


def test_nothing_is_redone_at_a_boundary(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a")
    desk.warm_up("b")
    desk.froze("a", generation=number, step=3)
    desk.all_run("a", "b")
    desk.commit(4)
    (told,) = desk.told_of("recovered")
    assert (told.details["cause"], told.details["steps_redone"]) == ("b joins", 0)


def test_death_on_the_way_to_a_boundary_costs_a_step(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.warm_up("c")
    desk.lost("b")
    desk.froze("a", generation=number, step=0)
    desk.all_run("a", "c")
    desk.commit(1)
    (told,) = desk.told_of("recovered")
    assert (told.details["cause"], told.details["steps_redone"]) == ("b is lost: gone", 1)


def test_steps_lost_are_part_of_the_incident(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    desk.beat("a", step=6)
    desk.register("a", incarnation=2)
    desk.warmed("a")
    desk.all_run("a")
    desk.beat("a", step=1)
    (told,) = desk.told_of("recovered")
    assert told.details["steps_lost"] == 6


def test_silence_before_an_eviction_is_told(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.silence(1.75, "a")
    desk.froze("a", generation=number, step=0)
    desk.all_run("a")
    desk.beat("a", step=1)
    (told,) = desk.told_of("recovered")
    assert told.worker == "b"
    assert told.details["detected_after_s"] == 1.75


def test_neighbours_word_is_replaced_by_what_is_known_of_the_dead(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.froze("a", generation=number, step=0, suspect="b", evidence="reset")
    desk.lost("b")
    desk.all_run("a")
    desk.beat("a", step=1)
    (told,) = desk.told_of("recovered")
    assert told.details["cause"] == "b is lost: gone"
