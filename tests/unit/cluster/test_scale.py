"""What a change costs the coordinator with many workers: messages, their size, and work.

Work is counted in calls of functions, which no other load of the machine changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from dtd.cluster.events import Ticked
from dtd.cluster.generation import states
from dtd.wire import messages as m

FEW, MANY = 16, 64
GROWTH = MANY / FEW


@dataclass
class Costs:
    """Of one change of the roster: messages and incidents, and the most calls for one event."""

    messages: int = 0
    incidents: int = 0
    calls: int = 0
    assigns: list[m.Assign] = field(default_factory=list)


class Change:
    """A job of many workers that loses one, or takes one in."""

    def __init__(self, make: Callable[..., Any], workers: int, strategy: dict[str, Any]) -> None:
        self.names = [f"worker-{number}" for number in range(workers)]
        self.driver = make()
        self.driver.submit(strategy=strategy)
        self.driver.run_generation(*self.names)
        self._handle, self.driver.core.handle = self.driver.core.handle, self._counted
        self.calls = 0

    def _counted(self, event: Any, now: float) -> Any:
        calls = 0

        def count(_frame: object, what: str, _argument: object) -> None:
            nonlocal calls
            calls += what == "call"

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            return self._handle(event, now)
        finally:
            sys.setprofile(before)
            self.calls = max(self.calls, calls)

    def lose(self) -> Costs:
        *left, gone = self.names
        return self._costs(lambda: self.driver.lost(gone), left, left)

    def join(self) -> Costs:
        def come() -> None:
            self.driver.register("worker-new")
            self.driver.warmed("worker-new")

        return self._costs(come, self.names, [*self.names, "worker-new"])

    def beats(self) -> int:
        """Return the most calls for one heartbeat."""
        self.calls = 0
        for step in (1, 2):
            self.driver.commit(step)
        return self.calls

    def _costs(self, change: Callable[[], None], freeze: list[str], run: list[str]) -> Costs:
        driver, number = self.driver, self.driver.cluster.run.generation
        self.beats()
        self.calls, driver.sent, driver.incidents = 0, [], []
        change()
        for name in freeze:
            part = tuple(states.assigned_part(driver.cluster.job, name).to_wire())
            held = m.Held(
                job="j-1", generation=number, step=3, digest="", where="memory", part=part
            )
            driver.froze(name, generation=number, step=3, prepared=(number, 3), held=(held,))
        driver.all_run(*run)
        driver.handle(Ticked())
        assert [driver.state(name) for name in run] == ["running"] * len(run)
        assigns = [one.message for one in driver.sent if isinstance(one.message, m.Assign)]
        return Costs(len(driver.sent), len(driver.incidents), self.calls, assigns)


STRATEGIES: dict[str, dict[str, Any]] = {
    "replicated": {},
    "sharded": {"name": "sharded", "mirrors": 1},
}


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize("change", [Change.lose, Change.join], ids=["lost", "joined"])
def test_change_costs_in_proportion_to_workers(
    change: Callable[[Change], Costs], strategy: dict[str, Any], make_desk: Any
) -> None:
    few, many = (change(Change(make_desk, count - 1, strategy)) for count in (FEW, MANY))
    assert many.messages <= 2 * MANY + 2  # FREEZE and ASSIGN, and what the joiner is told besides
    assert many.incidents == few.incidents
    assert many.calls <= 1.5 * GROWTH * few.calls


def test_heartbeat_costs_in_proportion_to_workers(make_desk: Any) -> None:
    few, many = (Change(make_desk, count, {}).beats() for count in (FEW, MANY))
    assert many <= GROWTH * few


def test_assign_has_as_many_bytes_for_each_member_of_many_as_of_few(make_desk: Any) -> None:
    few, many = (
        max(len(m.encode_header(one)) for one in Change(make_desk, count, {}).join().assigns)
        for count in (FEW, MANY - 1)
    )
    assert many / MANY <= few / FEW
    assert many < 100 * MANY
