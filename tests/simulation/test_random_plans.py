"""Clusters in which much goes wrong: whatever happens, no rule is broken.

A failure names its seed; `python -m tests.sim SEED` tells what happened, and `--seeds FIRST:LAST`
plays thousands more.
"""

import pytest

from tests.sim import many, plans

SEEDS = [*range(2 * len(plans.KINDS_OF_PLANS)), 55]
"""Two plans of every kind, and one that finds a fault of mutants.txt which these do not find."""
SEEDS_BESIDE = (0, 2, 3, 4, 6, 9, 11, 12)
"""Short plans of several jobs; `python -m tests.sim --beside SEED` tells one."""
SEEDS_AT_A_TIME = 10


@pytest.mark.parametrize("first", range(0, len(SEEDS), SEEDS_AT_A_TIME))
def test_no_rule_is_broken(first: int) -> None:
    seeds = SEEDS[first : first + SEEDS_AT_A_TIME]
    failed = [f"{one.seed}: {one.failure}" for one in many.play_all(seeds, jobs=1) if one.failure]
    assert not failed


def test_no_rule_is_broken_by_several_jobs() -> None:
    played = many.play_all(SEEDS_BESIDE, jobs=1, beside=True)
    assert not [f"{one.seed}: {one.failure}" for one in played if one.failure]


def test_same_seed_tells_the_same_story() -> None:
    assert plans.draw(7).run().story == plans.draw(7).run().story


def test_rows_are_divided_by_speeds_that_change_in_plans_with_faults() -> None:
    divided = [plans.draw(seed).run().oracle.agreements.unequal() for seed in range(9, 12)]
    assert sum(steps > 0 for steps in divided) > 1
