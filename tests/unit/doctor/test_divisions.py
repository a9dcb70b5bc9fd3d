"""The doctor's report of a state's memory."""

from __future__ import annotations

from dtd.doctor.job_memory import check_division, divided
from dtd.doctor.state_memory import TRAINING_BYTES
from dtd.job import parse_job

JOB = '[job]\nname = "a"\ntask = "digits"\nsteps = 3\nglobal_batch_size = 8\n'
MIB = 1 << 20


def spec(*overrides):
    return parse_job(JOB, source="test", overrides=overrides)


def steps(workers, available_mib=12):
    """Memory available for the state, and for all else that training takes."""
    state = {"parameter_bytes": 4 * MIB, "common_bytes": 0, "optimizer_bytes": 8 * MIB}
    usual = {"state": {**state, "pool_bytes": 0, "gathered_bytes": 0}}
    roomy = {**usual, "available_bytes": TRAINING_BYTES + 64 * MIB}
    least = {**usual, "available_bytes": TRAINING_BYTES + available_mib * MIB}
    return [roomy] * (workers - 1) + [least]


def test_every_stage_is_listed_with_its_parts_and_the_least_world_for_the_smallest_worker():
    listed = divided(spec(), steps(4))
    assert [(one.stage, one.mirrors, one.own) for one in listed] == [
        *((0, 0, True), (1, 1, False), (2, 1, False), (3, 1, False)),
    ]
    sizes = [one.parameters + one.gradients + one.optimizer for one in listed]
    assert sizes == [16 * MIB, 12 * MIB, 10 * MIB, 8 * MIB]
    assert [one.least_workers for one in listed] == [None, 4, 4, 3]


def test_the_jobs_own_mirrors_count():
    listed = divided(spec("strategy.name='sharded'", "strategy.mirrors=0"), steps(4))
    assert [one.own for one in listed] == [False, True, False, False]
    assert [(one.mirrors, one.optimizer) for one in listed[1:]] == [(0, 2 * MIB)] * 3


def findings(workers, *overrides):
    job = spec(*overrides)
    return [one.message for one in check_division(divided(job, steps(workers)), job, workers)]


def test_what_saves_nothing_and_what_is_lost_is_said():
    assert findings(2) == [], "a replicated job divides nothing"
    assert findings(3, "strategy.name='sharded'") == []
    assert findings(1, "strategy.name='sharded'") == []
    (nothing,) = findings(2, "strategy.name='sharded'")
    assert "with 2 workers and strategy.mirrors = 1 every worker holds the whole state" in nothing
    (loss,) = findings(2, "strategy.name='sharded'", "strategy.mirrors=0")
    assert "the loss of a worker costs the steps since the newest checkpoint" in loss


def test_workers_beside_servers_hold_no_part():
    job = spec("strategy.name='sharded'", "strategy.owners='servers'", "strategy.stage=2")
    own = next(one for one in divided(job, steps(4)) if one.own)
    assert (own.optimizer, own.gradients) == (0, 0)
    assert findings(2, "strategy.name='sharded'", "strategy.owners='servers'") == []
