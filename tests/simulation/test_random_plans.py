"""Hundreds of clusters in which much goes wrong: whatever happens, no rule is broken.

A failure names its seed; `python -m dtd.sim SEED` tells what happened.
"""

import pytest

from dtd.core.membership_events import JobState
from dtd.sim import plans

SEEDS = 400
SEEDS_AT_A_TIME = 25


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_A_TIME))
def test_no_rule_is_broken(first: int) -> None:
    for seed in range(first, first + SEEDS_AT_A_TIME):
        cluster = plans.draw(seed)
        try:
            cluster.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed belongs to it
            pytest.fail(f"python -m dtd.sim {seed}: {type(error).__name__}: {error}")
        allowed = {JobState.DONE} | ({JobState.CANCELLED} if cluster.planned("cancel") else set())
        ended = cluster.job()
        assert ended.state in allowed, f"python -m dtd.sim {seed}: {ended.state} {ended.reason}"


def test_same_seed_tells_the_same_story() -> None:
    assert plans.draw(7).run().story == plans.draw(7).run().story
