"""The doctor's report of the memory of hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.doctor.job_memory import (
    MOST_REMEDIES,
    Need,
    check_division,
    check_memory,
    divided,
    remedies,
)
from dtd.doctor.memory import TRAINING_BYTES, Division, StateSize
from dtd.job import parse_job

JOB = '[job]\nname = "a"\ntask = "digits"\nsteps = 3\nglobal_batch_size = 16\n'
GIB = 1 << 30
STATE = {"parameter_bytes": GIB, "common_bytes": 0, "optimizer_bytes": 2 * GIB}
PARTS = {"parameters": GIB, "buckets": GIB, "optimizer": 2 * GIB, "activations": 2 * GIB}


def findings(*available_gib, places="hh", overrides=()):
    names = [f"w{rank}" for rank in range(len(available_gib))]
    needs = [
        {"worker": name, "place": place, "parts": PARTS, "available_bytes": int(gib * GIB)}
        for name, place, gib in zip(names, places, available_gib, strict=False)
    ]
    steps = {name: {"state": STATE} for name in names}
    spec = parse_job(JOB, source="test", overrides=overrides)
    return list(check_memory(needs, steps, spec))


def test_workers_that_share_a_host_share_its_memory():
    (found,) = findings(11.5, 11)
    assert found.state == "warn"
    assert found.message == (
        "2 workers on h will need 12.0 GiB of 11.0 GiB: 1.0 GiB are missing, most is used by"
        " optimizer"
    )
    assert found.remedy.startswith("it fits with [train] grad_accumulation = 2 (5.0 GiB each); or ")
    assert [one.state for one in findings(12, 13)] == ["ok"]
    assert [one.state for one in findings(6, 6, places="hg")] == ["ok", "ok"]


def test_settings_of_other_strategies_are_not_named():
    local = ("strategy.name='local_sgd'", "strategy.inner_steps=2")
    (found,) = findings(9, 9, overrides=local)
    assert "stage" not in found.remedy
    (sharded,) = findings(9, 9, overrides=("strategy.name='sharded'", "strategy.mirrors=0"))
    assert "stage = 1" not in sharded.remedy, "the job's own"
    assert "stage = 2" in sharded.remedy


def test_nothing_reckoned_is_enough():
    (found,) = findings(1, 1)
    assert found.remedy.startswith("set train.activation_checkpointing and examine again, ")
    (found,) = findings(1, 1, overrides=("train.activation_checkpointing=true",))
    assert found.remedy.startswith("lower job.global_batch_size")


MIB = 1 << 20


def spec(*overrides):
    return parse_job(JOB, source="test", overrides=overrides)


def steps(workers, available_mib=12):
    """Memory available for the state, and for all else that training takes."""
    state = {"parameter_bytes": 4 * MIB, "common_bytes": 0, "optimizer_bytes": 8 * MIB}
    roomy = {"state": state, "available_bytes": TRAINING_BYTES + 64 * MIB}
    least = {"state": state, "available_bytes": TRAINING_BYTES + available_mib * MIB}
    return [roomy] * (workers - 1) + [least]


def test_every_stage_is_listed_with_its_parts_and_the_least_world_for_the_smallest_worker():
    listed = divided(spec(), steps(4))
    assert [(one.stage, one.mirrors, one.own) for one in listed] == [
        *((0, 0, True), (1, 1, False), (2, 1, False), (3, 1, False))
    ]
    sizes = [one.parameters + one.gradients + one.optimizer for one in listed]
    assert sizes == [16 * MIB, 12 * MIB, 10 * MIB, 8 * MIB]
    assert [one.least_workers for one in listed] == [None, 4, 4, 3]


def test_the_jobs_own_mirrors_count():
    listed = divided(spec("strategy.name='sharded'", "strategy.mirrors=0"), steps(4))
    assert [one.own for one in listed] == [False, True, False, False]
    assert [(one.mirrors, one.optimizer) for one in listed[1:]] == [(0, 2 * MIB)] * 3


def test_workers_beside_servers_hold_no_part():
    job = spec("strategy.name='sharded'", "strategy.owners='servers'", "strategy.stage=2")
    own = next(one for one in divided(job, steps(4)) if one.own)
    assert (own.optimizer, own.gradients) == (0, 0)


@pytest.mark.parametrize(
    ("workers", "overrides", "said"),
    [
        (2, (), ""),
        (3, ("strategy.name='sharded'",), ""),
        (1, ("strategy.name='sharded'",), ""),
        (2, ("strategy.name='sharded'", "strategy.owners='servers'"), ""),
        (2, ("strategy.name='sharded'",), "every worker holds the whole state"),
        (
            2,
            ("strategy.name='sharded'", "strategy.mirrors=0"),
            "the loss of a worker costs the steps since the newest checkpoint",
        ),
    ],
)
def test_what_saves_nothing_and_what_is_lost_is_said(workers, overrides, said):
    job = spec(*overrides)
    found = [one.message for one in check_division(divided(job, steps(workers)), job, workers)]
    assert len(found) == bool(said)
    assert all(said in one for one in found)


STAGES = (1, 2, 3)
SIZE = StateSize(parameter_bytes=8 * MIB, common_bytes=0, optimizer_bytes=16 * MIB)
MEASURED = {
    "parameters": 8 * MIB,
    "gradients": 0,
    "buckets": 8 * MIB,
    "optimizer": 16 * MIB,
    "snapshot": 24 * MIB,
    "activations": 40 * MIB,
    "runtime": 4 * MIB,
}
NEED = Need(
    parts=MEASURED,
    size=SIZE,
    division=Division(stage=0, mirrors=0),
    world_size=4,
    accumulation=1,
    rows=8,
)


def settings_for(available_mib, need=NEED, stages=STAGES, workers=1):
    found = remedies(need, available_bytes=available_mib * MIB, workers_here=workers, stages=stages)
    return [(one.setting, one.needed_bytes // MIB) for one in found]


def test_smaller_pieces_come_first_and_a_stage_is_an_alternative():
    assert settings_for(80) == [
        ("[train] grad_accumulation = 2", 80),
        ("[train] grad_accumulation = 4", 70),
        ("[train] grad_accumulation = 8", 65),
    ]
    assert settings_for(76, replace(NEED, rows=1)) == [
        ('[strategy] name = "sharded", stage = 1', 76),
        ('[strategy] name = "sharded", stage = 2', 70),
        ('[strategy] name = "sharded", stage = 3', 58),
    ]


def test_what_is_not_enough_alone_is_combined():
    assert settings_for(24) == [
        ('[strategy] name = "sharded", stage = 3 and [train] grad_accumulation = 8', 23)
    ]
    assert settings_for(22) == []


def test_workers_of_a_host_share_its_memory():
    assert settings_for(150, replace(NEED, rows=1), (), workers=2) == [
        ("at most 1 of its workers there", 100)
    ]
    assert settings_for(99, replace(NEED, rows=1), (), workers=2) == []
    assert settings_for(99, replace(NEED, parts={}, rows=1), (), workers=2) == []


@given(
    parts=st.fixed_dictionaries(dict.fromkeys(MEASURED, st.integers(0, 1 << 40))),
    parameters=st.integers(0, 1 << 40),
    optimizer=st.integers(0, 1 << 40),
    stage=st.integers(0, 3),
    mirrors=st.integers(0, 3),
    world=st.integers(1, 64),
    accumulation=st.integers(1, 64),
    rows=st.integers(1, 4096),
    available=st.integers(0, 1 << 40),
    workers=st.integers(0, 8),
)
def test_every_remedy_fits_and_none_needs_more_than_the_job_itself(
    parts, parameters, optimizer, stage, mirrors, world, accumulation, rows, available, workers
):
    need = Need(
        parts=parts,
        size=StateSize(parameter_bytes=parameters, common_bytes=0, optimizer_bytes=optimizer),
        division=Division(stage=stage, mirrors=mirrors),
        world_size=world,
        accumulation=accumulation,
        rows=rows,
    )
    found = remedies(need, available_bytes=available, workers_here=workers, stages=STAGES)
    assert len(found) <= MOST_REMEDIES
    for one in found:
        assert 0 <= one.needed_bytes <= available
        assert one.needed_bytes <= sum(parts.values())
