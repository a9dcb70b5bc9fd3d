"""Gradients travel by Gloo, and workers are killed in every phase of a step: nothing is lost.

Nobody is started again, so nine workers, of whom seven die, are two in the end.
"""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.integration

WORKERS = 9
DEATHS = {
    "forward": 3,
    "backward": 5,
    "exchange": 7,
    "vote": 9,
    "optimizer": 11,
    "evaluation": 16,
}
JOB = """
[job]
name = "dying"
task = "dying_task:Dying"
steps = 24
global_batch_size = 128
seed = 7
[optimizer]
momentum = 0.9
[checkpoint]
every_steps = 15
[train]
eval_every = 1
[sync]
transport = "gloo"
[elastic]
settle_s = 0.0
"""


@pytest.fixture(scope="module")
def ended(start_daemons, tmp_path_factory):
    """(the daemons, the job's id, what became of it)."""
    deaths = tmp_path_factory.mktemp("deaths")
    for phase, step in DEATHS.items():
        (deaths / f"{phase}-{step}").touch()
    daemons = start_daemons(WORKERS)
    job = daemons.submit(f"task.deaths={str(deaths)!r}", text=JOB)
    answer = daemons.wait(job)
    assert list(deaths.iterdir()) == []
    return daemons, job, answer


def test_deaths_in_all_these_phases_cost_no_step(ended):
    daemons, job, answer = ended
    result = answer["result"]
    assert (answer["state"], result["steps"], result["steps_lost"]) == ("done", 24, 0)
    assert (result["rows_missing"], result["rows_repeated"]) == (0, 0)
    assert len(daemons.events("worker_lost", job)) == len(DEATHS)
    assert daemons.events("steps_lost", job) == []


def test_the_survivors_are_equal_and_were_never_restarted(ended):
    daemons, _, answer = ended
    digests = answer["result"]["replica_digests"]
    assert len(digests) == WORKERS - len(DEATHS)
    assert len(set(digests.values())) == 1
    for name in digests:
        log = daemons.child(name).log_path.read_text().splitlines()
        events = [json.loads(line)["event"] for line in log]
        assert events.count("job_prepared") == 1


def test_each_generation_had_a_group_of_its_own(ended):
    daemons, _, answer = ended
    (name, *_) = answer["result"]["replica_digests"]
    log = map(json.loads, daemons.child(name).log_path.read_text().splitlines())
    formed = [line for line in log if line["event"] == "process_group_formed"]
    sizes = [line["world_size"] for line in formed]
    assert sizes == sorted(set(sizes), reverse=True)
    assert (sizes[0], sizes[-1]) == (WORKERS, WORKERS - len(DEATHS))
    assert len({line["generation"] for line in formed}) == len(formed)
