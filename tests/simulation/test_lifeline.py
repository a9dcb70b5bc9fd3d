"""Lifelines: a death is told at once, and a word that belongs to another ring says nothing."""

import random
from collections.abc import Callable

import pytest

from dtd.cluster.events import FromWorker
from dtd.cluster.workers.links import ENDED
from dtd.wire import messages as m
from tests.sim import lifeline
from tests.sim.cluster import Cluster
from tests.sim.data_port import LifelineHello

SEEDS = range(3)
STRAY_AT_S = 6.0


def second_generation(seed: int) -> Cluster:
    """Three workers; one dies, the others go on in generation 2."""
    cluster = Cluster(seed, workers=3).submit(steps=30, settle_s=2.0)
    return cluster.crash("worker-3", at_s=4.5)


def current(cluster: Cluster) -> m.Assign:
    """The generation that worker-1 is in."""
    process = cluster.machines.process("worker-1")
    assert process is not None
    assign = process.core.assign
    assert assign is not None
    assert (assign.generation, len(assign.roster)) == (2, 2)
    return assign


def stray(cluster: Cluster, generation: int, roster_id: int, rank: int) -> None:
    """Somebody greets worker-1 with a lifeline, and lets it go."""

    def let_go() -> None:
        port.close("let go")

    port = cluster.machines.network.connect(
        "worker-2",
        "worker-1",
        LifelineHello(key=(generation, roster_id, rank)),
        receive=lambda _: True,
        closed=lambda _: None,
        lifeline=True,
    )
    cluster.machines.surroundings.scheduler.after(0.1, let_go)


def until_done(cluster: Cluster) -> list[str]:
    """The story of the job; when all processes end afterwards, lifelines are cut in any order."""
    story = cluster.run().story
    done = next(number for number, line in enumerate(story) if line.endswith("job job-1 done"))
    return story[: done + 1]


def old_generation(cluster: Cluster) -> None:
    stray(cluster, 1, current(cluster).roster_id, 1 - current(cluster).rank)


def other_roster(cluster: Cluster) -> None:
    stray(cluster, 2, current(cluster).roster_id + 1, 1 - current(cluster).rank)


def no_such_rank(cluster: Cluster) -> None:
    stray(cluster, 2, current(cluster).roster_id, 2)


def old_report(cluster: Cluster) -> None:
    """A message of worker-1 in generation 1 comes only now."""
    assert cluster.machines.coordinator is not None
    frozen = m.Frozen(
        job="job-1",
        generation=1,
        roster_id=1,
        prepared_generation=0,
        prepared_step=0,
        held=(m.Held(job="job-1", generation=0, step=0, digest="", where="memory"),),
        suspect="worker-2",
        evidence=ENDED,
        reason="its process has ended",
    )
    cluster.machines.coordinator.handle(FromWorker(name="worker-1", message=frozen))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("word", [old_generation, other_roster, no_such_rank, old_report])
def test_a_word_of_another_ring_changes_nothing(seed: int, word: Callable[[Cluster], None]) -> None:
    disturbed = second_generation(seed)
    disturbed.machines.surroundings.scheduler.at(STRAY_AT_S, lambda: word(disturbed))
    assert until_done(disturbed) == until_done(second_generation(seed))


def test_a_word_of_this_ring_ends_it() -> None:
    """The test above lets in a message with a wrong name; one report kills no worker."""
    cluster = second_generation(0)
    scheduler = cluster.machines.surroundings.scheduler
    cluster.oracle.causes.struck(["worker-2"])

    def word() -> None:
        stray(cluster, 2, current(cluster).roster_id, 1 - current(cluster).rank)

    scheduler.at(STRAY_AT_S, word)
    cluster.run()
    report = "worker-1 lost its link to worker-2: its process has ended"
    assert any(report in line for line in cluster.story)
    assert not any("worker-2 was lost" in line for line in cluster.story)
    assert [cluster.succeeded(), cluster.lost_steps()] == [True, 0]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lifeline_that_a_middlebox_cuts_costs_no_step(seed: int) -> None:
    """Both ends live, and each says that the other has ended: one is lost, and comes back."""
    cluster = Cluster(seed, workers=2).submit(steps=30, settle_s=2.0)
    cluster.do("sever", "worker-1", "worker-2", at_s=4.5).run()
    assert [cluster.succeeded(), cluster.lost_steps()] == [True, 0]


def test_deaths_are_told_early_most_of_the_time() -> None:
    cluster = Cluster(1, workers=1)
    held = lifeline.Lifeline(cluster.machines.network, "worker-1", random.Random(1))
    deaths = [held.death() for _ in range(400)]
    early = [one for one in deaths if one.lifelines_s < one.streams_s]
    assert 300 < len(early) < 400
    assert all(one.lifelines_s <= one.streams_s for one in deaths)
