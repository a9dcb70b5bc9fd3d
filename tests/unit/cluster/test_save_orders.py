"""Who writes the last state of a job, and when who could not is asked again."""

from __future__ import annotations

from dtd.cluster.save_orders import FIRST_RETRY_S, MAX_RETRY_S, WRITING_S, SaveOrders


def orders() -> SaveOrders:
    return SaveOrders(key=(1, 10), began_at=0.0, hopes_until=0.0)


def test_who_writes_is_not_asked_again_until_the_answer() -> None:
    made = orders()
    made.asked["a"] = 0.0
    assert not made.may_be_asked("a", 1e6)
    made.answered("a")
    assert made.may_be_asked("a", 1.0)


def test_pauses_grow_and_are_bounded() -> None:
    made, now, pauses = orders(), 0.0, []
    for _ in range(40):
        made.asked["a"] = now
        made.failed("a", "full", now)
        pauses.append(made.failures["a"].retry_at - now)
        assert not made.may_be_asked("a", now)
        now = made.failures["a"].retry_at
        assert made.may_be_asked("a", now)
    assert pauses[:4] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S, 8 * FIRST_RETRY_S]
    assert pauses[-1] == MAX_RETRY_S == max(pauses)


def test_success_ends_the_pause() -> None:
    made = orders()
    made.failed("a", "full", 0.0)
    made.answered("a")
    assert made.may_be_asked("a", 0.0)
    assert made.why() == ""


def test_who_takes_too_long_does_not_count_as_writing() -> None:
    made = orders()
    made.asked = {"a": 0.0, "b": 5.0}
    assert made.writing(WRITING_S - 0.1) == 2
    assert made.writing(WRITING_S + 0.1) == 1


def test_orders_to_those_who_are_gone_are_void() -> None:
    made = orders()
    made.asked = {"a": 0.0, "b": 5.0}
    made.keep(["b"])
    assert made.asked == {"b": 5.0}


def test_orders_about_another_state_are_void() -> None:
    made = orders()
    made.asked["a"] = 0.0
    made.about((1, 10))
    assert "a" in made.asked
    made.about((2, 11))
    assert (made.key, made.asked) == ((2, 11), {})


def test_deadlines_are_those_to_come() -> None:
    made = orders()
    assert made.next_deadline(0.0) is None
    made.asked["a"] = 1.0
    made.failed("b", "full", 1.0)
    assert made.next_deadline(1.0) == 1.0 + FIRST_RETRY_S
    assert made.next_deadline(30.0) == 1.0 + WRITING_S
    made.hopes_until = 33.0
    assert made.next_deadline(30.0) == 33.0


def test_why_names_worker_and_reason() -> None:
    made = orders()
    made.failed("b", "no space left on device", 1.0)
    made.failed("a", "read-only file system", 1.0)
    assert made.why() == (
        "a cannot write: read-only file system; b cannot write: no space left on device"
    )
