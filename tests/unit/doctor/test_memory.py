"""The formula of a state's memory, and what is recommended where it does not fit."""

from __future__ import annotations

import pytest

from dtd.doctor.memory import (
    REPLICATED,
    Division,
    Room,
    StateSize,
    shortage,
    state_bytes,
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


def judged(limit_mib: float, stages: tuple[int, ...] = (1, 2, 3), **division: int):
    return shortage(
        ADAM,
        Division(**{"stage": REPLICATED, "mirrors": 1} | division),
        Room(bytes=int(limit_mib * MIB), limit="memory limit of the control group /dtd"),
        world_size=2,
        most_workers=8,
        stages=stages,
    )


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
