"""Members that are silent, or lost to their neighbours."""

from __future__ import annotations

from typing import Any

from dtd.cluster.events import Ticked
from dtd.cluster.status import standing
from dtd.cluster.workers import suspicion
from dtd.wire import messages as m

# --- silence ---------------------------------------------------------------------------------


def test_silent_member_is_evicted_within_two_seconds(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b")
    driver.silence(1.5, "b")
    assert driver.state("a") == "running"
    driver.silence(2.0, "b")
    assert driver.state("a") == "lost"
    assert "no heartbeat for" in driver.disconnected[0].reason


def test_silence_is_excused_while_the_generation_advances(driver: Any) -> None:
    """Every step needs every member: what commits steps lives, whatever reaches us of it."""
    driver.submit()
    driver.run_generation("a", "b")
    for step in range(1, 21):
        driver.now += 0.25
        driver.beat("b", step=step)
        driver.handle(Ticked())
    assert driver.now == 5.0
    assert driver.state("a") == "running"
    assert driver.cluster.workers["a"].reason.endswith("but its generation advances")
    driver.silence(driver.now + 1.0, "b")
    assert driver.state("a") == "lost"


def test_slow_steps_count_as_advancing_for_longer(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b")
    driver.beat("a", step=1)
    driver.beat("b", step=1, step_s=4.0)
    for _ in range(4 * 6):
        driver.now += 0.25
        driver.beat("b", step=1, step_s=4.0)
        driver.handle(Ticked())
    assert driver.now == suspicion.ADVANCING_STEPS * 4.0
    assert driver.state("a") == "running"
    driver.now += 0.25
    driver.beat("b", step=1, step_s=4.0)
    driver.handle(Ticked())
    assert driver.state("a") == "lost"


def test_worker_whose_heartbeat_has_arrived_and_is_not_read_yet_is_not_silent(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b")
    driver.silence(1.25, "b")
    driver.now += 0.5
    driver.beat("b")  # and that of the other one is the next to be read
    driver.beat("a")
    driver.handle(Ticked())
    assert driver.state("a") == "running"


def test_members_that_are_told_to_freeze_are_told_once(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b", "c", "d")
    driver.lost("a")
    driver.lost("b")
    driver.froze("c", generation=number, step=0, evidence="reset", suspect="d")
    assert [len(driver.told(name, m.Freeze)) for name in "cd"] == [1, 1]


# --- probes ----------------------------------------------------------------------------------


def bad_link(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation(*"abcd")
    for name in "abcd":
        other = {"a": "b", "b": "a"}.get(name, "")
        driver.froze(
            name, generation=number, step=0, suspect=other, evidence="silent" * bool(other)
        )


def test_a_link_that_loses_large_packets_is_told_as_such(driver: Any) -> None:
    bad_link(driver)
    driver.handle(Ticked())
    assert [one.kind for one in standing(driver.cluster)] == ["no-way"]
    failed = m.Probed(name="a", reachable=False, reason="no answer", greeted=True)
    driver.say("b", failed)
    [diagnostic] = standing(driver.cluster)
    assert (diagnostic.kind, diagnostic.where) == ("narrow-way", "a - b")
    assert "large ones are lost" in diagnostic.message
    assert "mtu" in diagnostic.remedy
