"""scripts/under_attack: its table says what was measured, and whether the aims are met."""

from __future__ import annotations

import dataclasses

import pytest

from scripts.underattack.__main__ import GROWTH_BYTES, Measured, lines, table

CALM = Measured(
    steps_per_s=[20.0, 21.0, 22.0],
    status_s=[0.01, 0.02, 0.03],
    revoked_s=[0.02],
    commands_s=[0.10, 0.12],
    resident_bytes=[60 * 2**20, 79 * 2**20],
)
ATTACKED = Measured(
    steps_per_s=[19.8, 20.8, 21.8],
    status_s=[0.02, 0.05, 0.4],
    revoked_s=[0.08],
    commands_s=[0.3],
    resident_bytes=[78 * 2**20, 80 * 2**20],
)


def test_the_table_has_figures_and_verdicts():
    made = table(lines(CALM, ATTACKED)).splitlines()
    assert len(made) == 7
    assert made[2] == (
        "| steps of the job a second | ratio at least 0.95 | 21.00"
        " | 20.80, ratio 0.990 (0.990 to 0.991) | met |"
    )
    assert "median 50 ms, slowest 400 ms" in made[3]
    assert made[6].endswith("| 60 MiB before the first attack | 80 MiB, +20 MiB | met |")
    assert all(row.endswith("| met |") for row in made[2:])


@pytest.mark.parametrize(
    ("row", "calm", "attacked"),
    [
        (0, {}, {"steps_per_s": [18.0, 19.0, 20.0]}),
        (1, {}, {"status_s": [0.01, 1.1]}),
        (2, {"commands_s": [0.16, 0.16, 0.1]}, {}),
        (3, {}, {"revoked_s": [36.0]}),
        (4, {}, {"resident_bytes": [CALM.resident_bytes[0] + GROWTH_BYTES]}),
    ],
)
def test_an_aim_that_is_missed_is_said(row, calm, attacked):
    told = lines(dataclasses.replace(CALM, **calm), dataclasses.replace(ATTACKED, **attacked))
    assert [number for number, one in enumerate(told) if not one.holds] == [row]
    assert table(told).count("**missed**") == 1
