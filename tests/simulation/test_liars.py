"""One worker that lies, to the coordinator or its ring, among others that do not: the job is done.

A failure names its seed.
"""

import pytest

from tests.sim.liar_plans import with_forger, with_liar, with_slanderer, with_withholder

SEEDS_AT_A_TIME = 10
SHARDED = 10
FORGED = 8
SLANDERED = 40
WITHHELD = 40
HARMED = {
    62015: "claims a checkpoint of a step far beyond the last, and loses its shards with another",
    62135: "denies a step that it has voted for, and commits it alone",
    63503: "denies a step that another has committed",
}


@pytest.mark.parametrize("first", range(0, SHARDED, SEEDS_AT_A_TIME))
def test_one_that_lies_about_its_shards_neither_ends_nor_spoils_a_job(first: int) -> None:
    """Its claims may cost what its death would: with another loss, steps."""
    for seed in range(first, first + SEEDS_AT_A_TIME):
        assert with_liar(seed, sharded=True).run(patience_s=200.0).succeeded(), seed


@pytest.mark.parametrize("seed", HARMED)
def test_lies_that_once_cost_others_their_steps_do_so_no_more(seed: int) -> None:
    """The oracle counts it as a broken rule if steps are lost, or called lost, that are not."""
    assert with_liar(seed, sharded=True).run(patience_s=200.0).succeeded(), HARMED[seed]


@pytest.mark.parametrize("sharded", [False, True])
def test_the_others_outvote_one_that_lies_in_its_ring_and_restart_nobody_else(
    sharded: bool,
) -> None:
    """The oracle counts it as a broken rule if another one is evicted or restarts."""
    for seed in range(FORGED):
        cluster = with_forger(seed, sharded=sharded).run(patience_s=120.0)
        assert cluster.succeeded(), seed
        assert cluster.lost_steps() == 0, seed


@pytest.mark.parametrize("first", range(0, SLANDERED, SEEDS_AT_A_TIME))
def test_who_claims_not_to_reach_another_puts_out_nobody_but_itself(first: int) -> None:
    for seed in range(first, first + SEEDS_AT_A_TIME):
        cluster = with_slanderer(seed).run()
        assert cluster.succeeded(), seed
        assert cluster.lost_steps() == 0, seed
        assert cluster.oracle.barred <= set(cluster.oracle.slandered), seed


@pytest.mark.parametrize("first", range(0, WITHHELD, SEEDS_AT_A_TIME))
def test_who_withholds_its_reports_is_passed_over_or_named(first: int) -> None:
    """Jobs that do not end by themselves do when the operator follows the status."""
    for seed in range(first, first + SEEDS_AT_A_TIME):
        cluster = with_withholder(seed).run()
        assert cluster.succeeded(), seed
        assert cluster.lost_steps() == 0, seed
