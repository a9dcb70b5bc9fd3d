"""Settings with which a job fits."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dtd.doctor.job_memory import MOST_REMEDIES, Need, remedies
from dtd.doctor.state_memory import Division, StateSize

MIB = 1 << 20
STAGES = (1, 2, 3)
SIZE = StateSize(parameter_bytes=8 * MIB, common_bytes=0, optimizer_bytes=16 * MIB)
PARTS = {
    "parameters": 8 * MIB,
    "gradients": 0,
    "buckets": 8 * MIB,
    "optimizer": 16 * MIB,
    "snapshot": 24 * MIB,
    "activations": 40 * MIB,
    "runtime": 4 * MIB,
}
NEED = Need(
    parts=PARTS,
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


sizes = st.integers(0, 1 << 40)


@given(
    parts=st.fixed_dictionaries(dict.fromkeys(PARTS, sizes)),
    parameters=sizes,
    optimizer=sizes,
    stage=st.integers(0, 3),
    mirrors=st.integers(0, 3),
    world=st.integers(1, 64),
    accumulation=st.integers(1, 64),
    rows=st.integers(1, 4096),
    available=sizes,
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
