"""A sweep whose coordinator is killed in the middle, and one that cancels a trial that is worse."""

from __future__ import annotations

import pytest

from dtd.wire import messages as m

pytest.importorskip("optuna")
pytestmark = pytest.mark.integration

BASE = {
    "job": {"name": "tiny", "task": "gated_task:Gated", "epochs": 1, "global_batch_size": 128},
    "elastic": {"settle_s": 0},
}
SPEC = {
    "sweep": {
        "metric": "accuracy",
        "direction": "maximize",
        "method": "random",
        "trials": 4,
        "parallel": 2,
        "workers_per_trial": 1,
        "seed": 5,
        "model": "tiny",
    },
    "space": {"optimizer.lr": {"low": 0.001, "high": 0.5, "log": True}},
    "base": BASE,
}
PRUNED = {
    "sweep": {
        "metric": "score",
        "direction": "maximize",
        "method": "grid",
        "pruner": "asha",
        "workers_per_trial": 1,
    },
    "space": {"task.score": {"choices": [0.75, 0.25, 0.875]}},
}
SCORED = {"name": "scored", "task": "scored_task:Scored", "epochs": 8, "global_batch_size": 128}
STEPS_OF_AN_EPOCH = 8


class Swept:
    """The first two trials stop at a gate, and the coordinator is killed while they do."""

    def __init__(self, daemons):
        self.daemons = daemons
        gates = daemons.hold(2)
        spec = {**SPEC, "base": {**BASE, "task": gates.task}}
        self.begun = daemons.ask(m.BeginSweep(spec=spec))
        for _ in range(2):
            daemons.await_event("generation_running", "with 1 worker ")
        self.half = daemons.ask(m.ShowSweep(sweep=self.begun["sweep"]))
        daemons.child("coordinator").signal_group(9)
        daemons.child("coordinator").wait(60)
        daemons.start_again()
        gates.open(0)
        self.ended = daemons.await_event("sweep_ended")
        self.shown = daemons.ask(m.ShowSweep(sweep=self.begun["sweep"]))


@pytest.fixture(scope="module")
def swept(start_daemons):
    return Swept(start_daemons(2))


def test_two_trials_run_at_once(swept):
    assert swept.begun == {"sweep": "sweep-1", "trials": 4}
    states = [trial["state"] for trial in swept.half["trials"]]
    assert states == ["running", "running"]


def test_it_goes_on_after_the_restart_and_no_trial_is_done_twice(swept):
    trials = swept.shown["trials"]
    assert swept.shown["state"] == "done"
    assert [trial["state"] for trial in trials] == ["done"] * 4
    assert trials[0]["job"] == swept.half["trials"][0]["job"]
    assert len({trial["params"]["optimizer.lr"] for trial in trials}) == 4
    jobs = swept.daemons.ask(m.ListJobs())["jobs"]
    assert sorted(job["id"] for job in jobs) == sorted(trial["job"] for trial in trials)


def test_the_best_trial_is_named(swept):
    best = max(swept.shown["trials"], key=lambda trial: (trial["value"], -trial["number"]))
    assert swept.shown["best"] == best
    assert f"job {best['job']}" in swept.ended["message"]
    assert swept.ended["message"].endswith("registered as tiny")
    (version,) = swept.daemons.ask(m.ListModels())["models"]
    assert (version["name"], version["record"]["job"]) == ("tiny", best["job"])
    assert set(swept.shown["importance"]) <= {"optimizer.lr"}


def test_what_has_ended_is_listed_and_is_not_cancelled(swept):
    (row,) = swept.daemons.ask(m.ListSweeps())["sweeps"]
    assert (row["id"], row["begun"], row["planned"]) == ("sweep-1", 4, 4)
    with pytest.raises(Exception, match="has ended: it is done"):
        swept.daemons.ask(m.CancelSweep(sweep="sweep-1"))
    with pytest.raises(Exception, match="no sweep 'sweep-9'; did you mean"):
        swept.daemons.ask(m.ShowSweep(sweep="sweep-9"))


def test_a_worse_trial_is_cancelled_in_its_first_evaluation(swept):
    """It is evaluated when the better one has ended, and stops at a gate in its second epoch."""
    daemons = swept.daemons
    gates = daemons.hold(4, STEPS_OF_AN_EPOCH + 4)  # the evaluation computes losses, too
    base = {"job": SCORED, "task": gates.task, "elastic": {"settle_s": 0}}
    name = daemons.ask(m.BeginSweep(spec={**PRUNED, "base": base}))["sweep"]
    for _trial in range(2):  # those of the other sweep were before its end, which was awaited
        daemons.await_event("generation_running")

    def shown():
        return daemons.ask(m.ShowSweep(sweep=name))

    better, worse = (trial["job"] for trial in shown()["trials"][:2])
    assert daemons.wait(better)["state"] == "done"
    daemons.until(worse, lambda: shown()["trials"][0]["state"] == "done")
    gates.open(0)
    daemons.until(worse, lambda: shown()["trials"][1]["state"] in ("pruning", "pruned"))
    gates.open(1)
    ended = daemons.ask(m.WaitJob(job=worse))
    assert ended["state"] == "cancelled"
    reason = "pruned by sweep-2: score 0.25 at step 8 is worse than that of other trials"
    assert daemons.ask(m.ShowJob(job=worse))["reason"] == reason
    assert "best: trial 2" in daemons.await_event("sweep_ended")["message"]
    trials = shown()["trials"]
    assert [trial["state"] for trial in trials] == ["done", "pruned", "done"]
    assert [trial["value"] for trial in trials] == [0.75, 0.25, 0.875]
    assert daemons.ask(m.ShowJob(job=worse))["step"] < 8 * STEPS_OF_AN_EPOCH
