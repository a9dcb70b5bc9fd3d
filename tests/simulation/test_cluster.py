"""The simulation as its users see it."""

from pathlib import Path

import pytest

from dtd.cluster.transitions import JobState
from tests.sim import __main__ as command
from tests.sim.cluster import Cluster, NothingEnds
from tests.sim.oracle import Broken
from tests.sim.phases import FORWARD


def test_innocent_workers_of_a_bounced_coordinator_do_not_notice() -> None:
    cluster = Cluster(5, workers=4).submit(steps=60, settle_s=2.0)
    for at_s in (4.0, 5.5, 7.0):
        cluster.bounce("coordinator", at_s=at_s)
    cluster.run()
    assert cluster.oracle.generations == 1
    assert cluster.machines.incarnations == 8  # four at the beginning, four after the job


def test_one_differing_replica_among_many_is_found_at_once() -> None:
    """Most are stopped before they have seen the digests, the odd one out perhaps too."""
    cluster = Cluster(2, workers=24).submit(steps=12, settle_s=2.0).corrupt("worker-24", at_s=4.2)
    cluster.run()
    assert [cluster.succeeded(), cluster.lost_steps()] == [True, 0]
    assert cluster.job().generation <= 3


def test_worker_with_other_data_stays_out_when_all_have_forgotten() -> None:
    cluster = Cluster(3, workers=3).submit(steps=30, settle_s=2.0).misfit("worker-1")
    cluster.corrupt("worker-3", at_s=4.5).run()
    assert cluster.succeeded()
    assert cluster.lost_steps() > 0
    assert set(cluster.job().roster) == {"worker-2", "worker-3"}


def test_cluster_that_cannot_go_on_is_no_success() -> None:
    cluster = Cluster(1, workers=1).submit(steps=5, min_workers=2)
    with pytest.raises(Broken, match="1 worker ready, 2 needed"):
        cluster.run(patience_s=30.0)


def test_job_that_is_left_without_enough_workers_rightly_waits_if_it_says_so() -> None:
    cluster = Cluster(1, workers=2).submit(steps=5, min_workers=2).misfit("worker-2")
    with pytest.raises(NothingEnds, match="worker-2 is refused: sampled rows of its dataset"):
        cluster.run(patience_s=30.0)
    assert cluster.rightly_waits()


@pytest.mark.parametrize("least", [1, 2])
def test_job_that_does_not_say_what_it_lacks_does_not_rightly_wait(least: int) -> None:
    """One worker would do in the first case; in the second the coordinator says nothing."""
    cluster = Cluster(1, workers=1).submit(steps=50, min_workers=least)
    cluster.crash("worker-1" if least == 1 else "coordinator", at_s=1.0)
    with pytest.raises(NothingEnds):
        cluster.run(patience_s=5.0)
    if least == 1:
        cluster.machines.start("worker-1")
    assert not cluster.rightly_waits()


def test_link_that_always_breaks_costs_a_worker_and_not_the_job() -> None:
    cluster = Cluster(1, workers=2).submit(steps=60)
    for moment in range(400):
        cluster.reset("worker-1", "worker-2", at_s=2.0 + 0.01 * moment)
    cluster.run()
    assert any("worker-2 stays out" in line for line in cluster.story)
    assert [cluster.succeeded(), cluster.lost_steps()] == [True, 0]


def test_step_that_kills_worker_after_worker_ends_the_job() -> None:
    cluster = Cluster(1, workers=6).submit(steps=20)
    for _ in range(5):
        cluster.crash(rank=1, back_after_s=0.1).at(step=7, phase=FORWARD)
    cluster.run()
    assert cluster.job().state is JobState.FAILED
    assert cluster.job().reason.startswith("step 7 kills worker after worker")


def test_operator_is_told_when_it_is_refused_or_nobody_answers() -> None:
    cluster = Cluster(1, workers=1).submit(steps=5)
    cluster.do("drain", "worker-9", at_s=1.0)
    cluster.crash("coordinator", at_s=1.1).do("cancel", "job-1", at_s=1.2)
    cluster.restart("coordinator", at_s=1.3).run()
    assert any("refused: no worker 'worker-9' is connected" in line for line in cluster.story)
    assert any("nobody answers the operator" in line for line in cluster.story)


def test_command_runs_many_plans(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seeds", "1:3"]) == 0
    assert capsys.readouterr().out.startswith("2 seeds, ")


def test_command_tells_a_seed_and_writes_stories_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "story.txt"
    path.write_text("cluster seed=1 workers=1\nsubmit steps=1\n")
    command.main(["5", str(path)])
    assert capsys.readouterr().out.startswith("seed 5\n")
    assert path.read_text().endswith("job-1 is done at step 1, 0 steps lost; worker-1 is idle\n")
