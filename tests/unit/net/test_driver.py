"""The driver: events in, effects out in order, and a wake-up at the core's deadline."""

from __future__ import annotations

import asyncio

from dtd.net.driver import Driver

PATIENCE_S = 60.0


class Core:
    """Answers an event with the effects that it names; its deadline is set by the test."""

    def __init__(self):
        self.seen = []
        self.deadline = None
        self.woken = asyncio.Event()

    def handle(self, event, now):
        self.seen.append((event, now))
        if event == "deadline":
            self.deadline = None
            self.woken.set()
        return [f"{event}-{number}" for number in (1, 2)]

    def next_deadline(self, now):
        return self.deadline


def drive(core):
    performed = []
    return Driver(core, performed.append, lambda: "deadline"), performed


async def woken(core):
    async with asyncio.timeout(PATIENCE_S):
        await core.woken.wait()


async def test_effects_are_performed_in_order_with_the_loops_clock():
    core = Core()
    driver, performed = drive(core)
    before = driver.now
    driver.handle("a")
    driver.handle("b")
    assert performed == ["a-1", "a-2", "b-1", "b-2"]
    assert before <= core.seen[0][1] <= core.seen[1][1] <= driver.now


async def test_the_core_is_woken_when_its_deadline_has_come_and_only_once():
    core = Core()
    driver, performed = drive(core)
    core.deadline = driver.now + 0.01
    due = core.deadline
    driver.handle("a")
    await woken(core)
    assert [event for event, _ in core.seen] == ["a", "deadline"]
    assert core.seen[1][1] >= due - 0.001  # timers of the loop count milliseconds
    assert performed[2:] == ["deadline-1", "deadline-2"]
    assert driver._timer is None
