"""The simulation as its users see it."""

from pathlib import Path

import pytest

from dtd.core.membership_events import JobState
from dtd.sim import __main__ as command
from dtd.sim.cluster import Cluster
from dtd.sim.oracle import Broken


def test_a_plan_reads_like_a_sentence() -> None:
    cluster = (
        Cluster(3, workers=3)
        .submit(steps=40, buckets=(8, 8), checkpoint_every=5)
        .crash("worker-1", at_s=3.5)
        .restart("worker-1", at_s=4.0)
        .hold("worker-1", "worker-2", at_s=5.0, until_s=5.5)
        .partition_oneway("worker-2", "worker-3", at_s=6.0, until_s=6.2)
        .pause("worker-3", at_s=6.5, until_s=7.0)
        .reset("worker-1", "worker-2", at_s=7.5)
        .bounce("coordinator", at_s=8.0)
        .run()
    )
    assert cluster.succeeded()
    assert cluster.lost_steps() == 0
    assert set(cluster.workers_state().values()) == {"idle"}


def test_cluster_that_cannot_go_on_is_no_success() -> None:
    cluster = Cluster(1, workers=1).submit(steps=5, min_workers=2)
    with pytest.raises(Broken, match="1 of at least 2 workers are ready"):
        cluster.run(patience_s=30.0)


def test_cluster_without_its_coordinator_is_no_success() -> None:
    cluster = Cluster(1, workers=1).submit(steps=50).crash("coordinator", at_s=2.0)
    with pytest.raises(Broken, match="it is away"):
        cluster.run(patience_s=30.0)


def test_ring_that_always_breaks_ends_the_job() -> None:
    """A job does not go round in circles for ever, whatever it is that breaks its ring."""
    cluster = Cluster(1, workers=2).submit(steps=2000)
    for moment in range(400):
        cluster.reset("worker-1", "worker-2", at_s=2.0 + 0.01 * moment)
    cluster.run()
    assert cluster.job().state is JobState.FAILED
    assert cluster.job().reason == "8 generations in a row committed no step"


def test_operator_is_told_when_he_is_refused_or_nobody_answers() -> None:
    cluster = Cluster(1, workers=1).submit(steps=5)
    cluster.do("drain", "worker-9", at_s=1.0)
    cluster.crash("coordinator", at_s=1.1).do("cancel", "job-1", at_s=1.2)
    cluster.restart("coordinator", at_s=1.3).run()
    assert any("refused: no worker 'worker-9' is connected" in line for line in cluster.story)
    assert any("nobody answers the operator" in line for line in cluster.story)


def test_command_tells_a_seed_and_writes_stories_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "story.txt"
    path.write_text("cluster seed=1 workers=1\nsubmit steps=1\n")
    command.main(["5", str(path)])
    assert capsys.readouterr().out.startswith("seed 5\n")
    assert path.read_text().endswith("job-1 is done at step 1, 0 steps lost; worker-1 is idle\n")
