"""The doctor's report of the memory of hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.doctor.job_memory import (
    MOST_REMEDIES,
    Need,
    check_division,
    divided,
    remedies,
)
from dtd.doctor.memory import TRAINING_BYTES, Division, StateSize
from dtd.job import parse_job

JOB = '[job]\nname = "a"\ntask = "digits"\nsteps = 3\nglobal_batch_size = 16\n'


MIB = 1 << 20


def spec(*overrides):
    return parse_job(JOB, source="test", overrides=overrides)


def steps(workers, available_mib=12):
    """Memory available for the state, and for all else that training takes."""
    state = {"parameter_bytes": 4 * MIB, "common_bytes": 0, "optimizer_bytes": 8 * MIB}
    roomy = {"state": state, "available_bytes": TRAINING_BYTES + 64 * MIB}
    least = {"state": state, "available_bytes": TRAINING_BYTES + available_mib * MIB}
    return [roomy] * (workers - 1) + [least]


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
MEASURED = {
    "parameters": 8 * MIB,
    "gradients": 0,
    "buckets": 8 * MIB,
    "optimizer": 16 * MIB,
    "snapshot": 24 * MIB,
    "activations": 40 * MIB,
    "runtime": 4 * MIB,
}


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
