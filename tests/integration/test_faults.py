"""One fault at a time, into real daemons that train: what they do about it.

Two scenarios, so that each cluster is started once; a killed worker is in test_recovery.  Nothing
is timed: whatever is waited for is a line in a log, a file or a process.
"""

from __future__ import annotations

import contextlib
import signal
import time

import pytest

from scripts.chaosrun import faults, judge
from scripts.chaosrun.harness import Harness
from scripts.chaosrun.run import SCENARIOS, job_of
from scripts.cluster.networked import NetworkedCluster
from scripts.cluster.networks import Loopback, Proxied

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
LAST_DECISIONS = 12
WORKERS = ["worker-0", "worker-1", "worker-2"]
# Steps leave the processor free for those who start or find out meanwhile.
SMALL = ("task.parameters=20000", "task.compute_ms=30.0", "task.rows=512")


class Scenario:
    """A harness, and questions to its logs."""

    def __init__(self, directory, network):
        (directory / "commands").mkdir()
        cluster = NetworkedCluster(directory, workers=WORKERS, network=network)
        spec = job_of(
            SCENARIOS["kill"],
            task="synthetic",
            commands=str(directory / "commands"),
            overrides=SMALL,
        )
        self.cluster = cluster
        self.harness = Harness(
            cluster, workers=WORKERS, spare="", spec=spec, seed=1, say=lambda _text: None
        )
        self.timeline = self.harness.timeline

    def begin(self):
        assert self.harness.start()
        self.harness.job_wanted = True
        self.settle()

    def settle(self):
        count = len(WORKERS)
        assert self.harness.until(lambda: self.harness.settled(count), PATIENCE_S), (
            self.harness.fit()
        )

    def decision(self, event, since_s, containing=""):
        """The coordinator's first line of this kind since then."""
        found = []

        def look():
            found.extend(
                line
                for line in self.timeline.decisions
                if line.event == event
                and line.at_s >= since_s - 0.01
                and containing in line.fields.get("message", "")
            )
            return bool(found)

        if not self.harness.until(look, PATIENCE_S):
            last = self.timeline.decisions[-LAST_DECISIONS:]
            lines = "\n".join(
                f"{line.at_s - since_s:+.2f} s {line.event} {line.fields}" for line in last
            )
            pytest.fail(f"no {event} ({containing}) in {PATIENCE_S:g} s; logged last:\n{lines}")
        return found[0]

    def advances(self, count=3):
        """The job commits some more steps, whoever does."""
        last = self.timeline.last_commit()
        assert self.harness.until(
            lambda: self.timeline.last_commit().step >= last.step + count, PATIENCE_S
        )

    def pids(self):
        return {name: self.cluster.pid(name) for name in WORKERS}

    def end(self):
        """The job's result."""
        (job,) = self.harness.finish(PATIENCE_S)
        return job["result"]


@pytest.fixture
def tell(tmp_path):
    """Starts scenarios; nothing of their daemons is left afterwards."""
    with contextlib.ExitStack() as stack:

        def start(network):
            stack.callback(network.close)
            scenario = Scenario(tmp_path, network)
            stack.callback(scenario.harness.close)
            scenario.begin()
            return scenario

        yield start


def assert_nothing_was_lost(scenario):
    result = scenario.end()
    assert (result["steps_lost"], result["rows_missing"], result["rows_repeated"]) == (0, 0, 0)
    assert sorted(result["replica_digests"]) == WORKERS
    assert len(set(result["replica_digests"].values())) == 1


def test_the_coordinator_is_killed_and_workers_are_stopped_and_stuck(tell):
    scenario = tell(Loopback())
    begun = scenario.pids()
    kill_the_coordinator(scenario)
    assert scenario.pids() == begun
    woken = stop_a_worker(scenario, "worker-1")
    get_a_worker_stuck(scenario, "worker-0")
    was_fenced(scenario, woken)
    assert scenario.pids() == begun
    assert_nothing_was_lost(scenario)


def kill_the_coordinator(scenario):
    """The generation that runs is adopted as it is."""
    generation = scenario.timeline.generation
    injection = faults.coordinator(scenario.harness, "")
    scenario.decision("generation_adopted", injection.at_s)
    for name in WORKERS:
        scenario.decision("worker_registered", injection.at_s, containing=name)
    scenario.advances()
    assert scenario.timeline.generation == generation
    assert [line.daemon for line in scenario.timeline.lives if line.at_s > injection.at_s] == []


def stop_a_worker(scenario, victim):
    """It is evicted in time; when it has woken up, the others go on."""
    injection = scenario.harness.begin("stop", victim)
    scenario.cluster.signal(victim, signal.SIGSTOP)
    scenario.decision("worker_lost", injection.at_s, containing=victim)
    scenario.decision("generation_running", injection.at_s, containing="2 workers")
    scenario.advances()
    scenario.cluster.signal(victim, signal.SIGCONT)
    injection.over_s = time.time()
    # Whole again: what happens next may do so in the first step after that.
    scenario.decision("generation_running", injection.over_s, containing="3 workers")
    return injection


def was_fenced(scenario, injection):
    """Since it woke up it has taken part in newer generations only.

    It may first have finished the step in whose middle it stood, if all had prepared that.
    """
    (victim,) = injection.victims
    since = [
        one.generation
        for one in scenario.timeline.commits
        if one.worker == victim and one.at_s > injection.over_s
    ]
    assert since
    assert min(since[1:], default=since[0]) > injection.generation
    assert judge.replicas_equal([], scenario.timeline.commits, [injection]).holds


def get_a_worker_stuck(scenario, victim):
    """The line that does not return is named, and the process starts afresh."""
    injection = faults.stuck(scenario.harness, victim)
    lost = scenario.decision("worker_lost", injection.at_s, containing=victim)
    assert "faulty_task.py" in lost.fields["message"]
    assert "stuck" in lost.fields["message"]
    scenario.settle()


def test_links_damage_what_they_carry_and_die(tell):
    scenario = tell(Proxied(WORKERS))
    begun = scenario.pids()
    flip_a_bit(scenario, "worker-1")
    cut_a_link(scenario, "worker-0")
    assert scenario.pids() == begun
    assert_nothing_was_lost(scenario)


def flip_a_bit(scenario, victim):
    """It is noticed, the step is done again, nobody is to blame for good."""
    injection = faults.flip(scenario.harness, victim)
    assert injection is not None
    broken = scenario.decision("ring_broken", injection.at_s)
    assert broken.fields["evidence"] in ("corrupt", "reset")
    scenario.settle()


def cut_a_link(scenario, victim):
    """Two of three cannot hear each other: one stays out until they can; nobody is restarted."""
    roster = scenario.timeline.roster
    other = roster[(roster.index(victim) + 1) % len(roster)]
    injection = scenario.harness.begin("link", victim, other)
    ways = [(victim, other), (other, victim)]
    for way in ways:
        scenario.cluster.network.cut(*way)
    bad = scenario.decision("link_bad", injection.at_s)
    assert bad.fields["evidence"] in ("silent", "unreachable")
    assert victim in bad.fields["message"]
    assert other in bad.fields["message"]
    scenario.decision("generation_running", injection.at_s, containing="2 workers")
    scenario.advances()
    for way in ways:
        scenario.cluster.network.restore(*way)
    injection.over_s = time.time()
    scenario.settle()
