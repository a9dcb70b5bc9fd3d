"""A job whose steps are committed by rounds: nobody is more than a round behind."""

from __future__ import annotations

from typing import Any

from dtd.cluster import suspicion
from dtd.cluster.events import Submitted
from dtd.cluster.records import Job

ROUND = 8


def training(desk: Any, *names: str) -> int:
    """A generation that has committed two rounds."""
    strategy = {"name": "diloco", "inner_steps": ROUND}
    spec = {"job": {"name": "j"}, "elastic": {"settle_s": 0.0}, "strategy": strategy}
    desk.handle(Submitted(job=Job(id="j-1", spec=spec)))
    number = int(desk.run_generation(*names))
    desk.commit(2 * ROUND)
    return number


def test_survivors_go_on_with_the_round_that_one_of_them_has_prepared(desk: Any) -> None:
    number = training(desk, "a", "b", "c")
    desk.lost("c")
    desk.froze("a", generation=number, step=3 * ROUND)
    desk.froze("b", generation=number, step=2 * ROUND, prepared=(number, 3 * ROUND))
    assert (desk.cluster.run.roster, desk.cluster.run.start_step) == (["a", "b"], 3 * ROUND)
    assert desk.cluster.job.steps_lost == 0
    assert desk.disconnected == []


def test_whoever_is_a_round_behind_survives(desk: Any) -> None:
    """Two have told of a round, and died; the third can commit it."""
    number = training(desk, "a", "b", "c")
    desk.beat("a", step=3 * ROUND)
    desk.beat("b", step=3 * ROUND)
    assert desk.cluster.job.step == 3 * ROUND
    desk.lost("a")
    desk.lost("b")
    desk.froze("c", generation=number, step=2 * ROUND, prepared=(number, 3 * ROUND))
    assert (desk.cluster.run.roster, desk.cluster.run.start_step) == (["c"], 3 * ROUND)
    assert desk.cluster.job.steps_lost == 0


def test_the_last_round_ends_with_the_job(desk: Any) -> None:
    number = training(desk, "a", "b")
    last = desk.cluster.job.total_steps
    assert last == 10_000 == 1250 * ROUND
    desk.cluster.job.total_steps = 3 * ROUND - 5
    desk.froze("a", generation=number, step=2 * ROUND, prepared=(number, 3 * ROUND - 5))


def test_a_generation_advances_by_rounds(desk: Any) -> None:
    """A member is not heard of for longer than its heartbeats allow, but within a round."""
    number = training(desk, "a", "b")
    assert number == 1
    step_s = 1.0
    desk.beat("b", step=2 * ROUND, step_s=step_s)
    begun = desk.now
    while desk.now - begun < suspicion.ADVANCING_STEPS * ROUND * step_s - 0.25:
        desk.now += 0.25
        desk.beat("b", step=2 * ROUND, step_s=step_s)
    assert desk.state("a") == "running"
    desk.now += 0.5
    desk.beat("b", step=2 * ROUND, step_s=step_s)
    assert desk.state("a") == "lost"
