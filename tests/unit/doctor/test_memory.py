"""The formula of a state's memory, and what is recommended where it does not fit."""

from __future__ import annotations

import dataclasses

import pytest

from dtd.doctor.memory import (
    REPLICATED,
    Division,
    Room,
    StateSize,
    least_workers,
    needed_bytes,
    shortage,
    state_bytes,
    state_parts,
)

MIB = 1 << 20
ADAM = StateSize(parameter_bytes=4 * MIB, common_bytes=0, optimizer_bytes=8 * MIB)
WHOLE_BYTES = 16 * MIB


@pytest.mark.parametrize(
    ("stage", "mirrors", "share"),
    [
        (REPLICATED, 1, 1.0),
        (1, 1, 0.75),
        (2, 1, 0.625),
        (3, 1, 0.5),
        (1, 0, 0.625),
        (2, 0, 0.4375),
        (3, 0, 0.25),
        (3, 3, 1.0),  # everybody holds everything
        (3, 7, 1.0),
    ],
)
def test_shares_of_sixteen_bytes_a_parameter_with_four_workers(
    stage: int, mirrors: int, share: float
) -> None:
    assert state_bytes(ADAM, Division(stage=stage, mirrors=mirrors), 4) == share * WHOLE_BYTES


def test_what_is_not_divided_and_what_is_in_flight_is_added() -> None:
    size = StateSize(
        parameter_bytes=1001,
        common_bytes=7,
        optimizer_bytes=0,
        pool_bytes=10,
        gathered_bytes=20,
        gradient_bytes=5,
    )
    assert state_parts(size, Division(stage=1), 2) == {
        "parameters": 1008,
        "gradients": 1001 + 5,
        "optimizer": 0,
    }
    assert state_parts(size, Division(stage=3), 2) == {
        "parameters": 7 + 501 + 20,
        "gradients": 501 + 10 + 5,
        "optimizer": 0,
    }


def test_one_parameter_that_is_nearly_all_may_need_more_in_a_higher_stage() -> None:
    """It is gathered whole, travels whole and has its whole gradient, whatever a rank holds."""
    size = StateSize(
        parameter_bytes=100,
        common_bytes=0,
        optimizer_bytes=0,
        pool_bytes=80 + 4 * 2,
        gathered_bytes=80 + 2,
        gradient_bytes=80,
    )
    needed = [needed_bytes(size, Division(stage=stage), 4) for stage in (1, 2, 3)]
    assert needed == [100 + 100 + 80, 100 + 25 + 88 + 80, 25 + 82 + 25 + 88 + 80]


def test_the_smallest_world_that_fits() -> None:
    stage_3 = Division(stage=3, mirrors=1)
    assert least_workers(ADAM, stage_3, limit_bytes=8 * MIB, most_workers=64) == 4
    assert least_workers(ADAM, stage_3, limit_bytes=8 * MIB, most_workers=3) is None
    assert least_workers(ADAM, Division(stage=1), limit_bytes=8 * MIB, most_workers=64) is None


def judged(limit_mib: float, stages: tuple[int, ...] = (1, 2, 3), **division: int):
    return shortage(
        ADAM,
        Division(**{"stage": REPLICATED, "mirrors": 1} | division),
        Room(bytes=int(limit_mib * MIB), limit="memory limit of the control group /dtd"),
        world_size=2,
        most_workers=8,
        stages=stages,
    )


def test_a_state_that_fits_is_accepted() -> None:
    assert judged(16) is None
    assert judged(14, stage=1, mirrors=0) is None


def test_a_state_that_does_not_fit_is_refused_with_numbers_and_settings() -> None:
    short = judged(13)
    assert short.message == (
        "the state needs 16.0 MiB in each worker (parameters 4.0 MiB, gradients 4.0 MiB, optimizer"
        " 8.0 MiB), without activations, and 13.0 MiB are available (memory limit of the control"
        " group /dtd)"
    )
    assert short.remedy == (
        'it fits with [strategy] name = "sharded", stage = 1, mirrors = 1 and [elastic]'
        ' min_workers = 4; or name = "sharded", stage = 2, mirrors = 1 and [elastic]'
        " min_workers = 3"
    )


def test_stage_3_has_all_parameters_at_times() -> None:
    """4 workers: 4 MiB in a step; 4 + 1 when the model is divided, 4 + 1 + 2 when evaluated."""
    stage_3 = Division(stage=3, mirrors=0)
    assert state_bytes(ADAM, stage_3, 4) == 4 * MIB
    assert needed_bytes(ADAM, stage_3, 4) == 5 * MIB
    evaluated = dataclasses.replace(ADAM, shows_whole=True, pool_bytes=MIB)
    assert needed_bytes(evaluated, stage_3, 4) == 8 * MIB, "the model comes through the pool"
    evaluated = dataclasses.replace(ADAM, shows_whole=True)
    assert needed_bytes(evaluated, stage_3, 4) == 7 * MIB
    assert needed_bytes(evaluated, Division(stage=2, mirrors=0), 4) == 7 * MIB
    short = judged(4.9, stage=3, mirrors=0)
    assert "6.0 MiB in each worker among 2 workers" not in short.message
    assert "the state needs 8.0 MiB in each worker among 2 workers (parameters" in short.message
