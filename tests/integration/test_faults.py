"""One fault at a time, into real daemons that train: what they do about it.

Two stories, so that each cluster is started once; of a killed worker tells test_recovery.  Nothing
is timed but what the daemons promise: evictions within their bounds.  Whatever is waited for is a
line in a log, a file or a process.
"""

from __future__ import annotations

import contextlib
import signal
import time

import pytest

from scripts.chaosrun import checks, hurt_hosts, hurt_links, hurt_workers
from scripts.chaosrun.cluster import ChaosCluster
from scripts.chaosrun.disks import PlainDisks
from scripts.chaosrun.drill import Drill
from scripts.chaosrun.networks import Loopback, Proxied
from scripts.chaosrun.scenarios import SCENARIOS, job_of

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
# What is promised is two seconds; the rest is for a machine that does other things as well.
EVICTED_S = 4.0
WORKERS = ["worker-0", "worker-1", "worker-2"]
# Steps leave the processor free for those who start or find out meanwhile.
SMALL = ("task.parameters=20000", "task.compute_ms=30.0", "task.rows=512")


class Story:
    """A drill, and questions to its logs."""

    def __init__(self, directory, network):
        (directory / "orders").mkdir()
        cluster = ChaosCluster(
            directory=directory, workers=WORKERS, network=network, disks=PlainDisks()
        )
        spec = job_of(
            SCENARIOS["kill"], task="synthetic", orders=str(directory / "orders"), overrides=SMALL
        )
        self.cluster = cluster
        self.drill = Drill(
            cluster, workers=WORKERS, spare="", spec=spec, seed=1, say=lambda _text: None
        )
        self.scene = self.drill.scene

    def begin(self):
        assert self.drill.start()
        self.drill.job_wanted = True
        self.settle()

    def settle(self):
        count = len(WORKERS)
        assert self.drill.until(lambda: self.drill.settled(count), PATIENCE_S), self.drill.fit()

    def decision(self, event, since_s, containing=""):
        """The coordinator's first line of this kind since then."""
        found = []

        def look():
            found.extend(
                line
                for line in self.scene.decisions
                if line.event == event
                and line.at_s >= since_s - 0.01
                and containing in line.fields.get("message", "")
            )
            return bool(found)

        assert self.drill.until(look, PATIENCE_S), f"no {event} ({containing})"
        return found[0]

    def advances(self, count=3):
        """The job commits some more steps, whoever does."""
        last = self.scene.last_commit()
        assert self.drill.until(lambda: self.scene.last_commit().step >= last.step + count, 20.0)

    def pids(self):
        return {name: self.cluster.pid(name) for name in WORKERS}

    def end(self):
        """The job's result."""
        (job,) = self.drill.finish(PATIENCE_S)
        return job["result"]


@pytest.fixture
def tell(tmp_path):
    """Starts stories; nothing of their daemons is left afterwards."""
    with contextlib.ExitStack() as stack:

        def start(network):
            stack.callback(network.close)
            story = Story(tmp_path, network)
            stack.callback(story.drill.close)
            story.begin()
            return story

        yield start


def assert_nothing_was_lost(story):
    result = story.end()
    assert (result["steps_lost"], result["rows_missing"], result["rows_repeated"]) == (0, 0, 0)
    assert sorted(result["replica_digests"]) == WORKERS
    assert len(set(result["replica_digests"].values())) == 1


def test_the_coordinator_is_killed_and_workers_are_stopped_and_stuck(tell):
    story = tell(Loopback())
    begun = story.pids()
    kill_the_coordinator(story)
    assert story.pids() == begun
    woken = stop_a_worker(story, "worker-1")
    get_a_worker_stuck(story, "worker-0")
    was_fenced(story, woken)
    assert story.pids() == begun
    assert_nothing_was_lost(story)


def kill_the_coordinator(story):
    """The generation that runs is adopted as it is."""
    generation = story.scene.generation
    injection = hurt_hosts.coordinator(story.drill, "")
    story.decision("generation_adopted", injection.at_s)
    for name in WORKERS:
        story.decision("worker_registered", injection.at_s, containing=name)
    story.advances()
    assert story.scene.generation == generation
    assert [line.daemon for line in story.scene.lives if line.at_s > injection.at_s] == []


def stop_a_worker(story, victim):
    """It is evicted in time; when it has woken up, the others go on."""
    injection = story.drill.begin("stop", victim)
    story.cluster.signal(victim, signal.SIGSTOP)
    lost = story.decision("worker_lost", injection.at_s, containing=victim)
    assert lost.at_s - injection.at_s < EVICTED_S
    story.decision("generation_running", injection.at_s, containing="2 workers")
    story.advances()
    story.cluster.signal(victim, signal.SIGCONT)
    injection.over_s = time.time()
    # Whole again: what happens next may do so in the first step after that.
    story.decision("generation_running", injection.over_s, containing="3 workers")
    return injection


def was_fenced(story, injection):
    """Since it woke up it has taken part in newer generations only.

    It may first have finished the step in whose middle it stood, if all had prepared that.
    """
    (victim,) = injection.victims
    since = [
        one.generation
        for one in story.scene.commits
        if one.worker == victim and one.at_s > injection.over_s
    ]
    assert since
    assert min(since[1:], default=since[0]) > injection.generation
    assert checks.replicas_equal([], story.scene.commits, [injection]).holds


def get_a_worker_stuck(story, victim):
    """The line that does not return is named, and the process starts afresh."""
    injection = hurt_workers.stuck(story.drill, victim)
    lost = story.decision("worker_lost", injection.at_s, containing=victim)
    assert "mischief.py" in lost.fields["message"]
    assert "stuck" in lost.fields["message"]
    story.settle()


def test_links_damage_what_they_carry_and_die(tell):
    story = tell(Proxied(WORKERS))
    begun = story.pids()
    flip_a_bit(story, "worker-1")
    cut_a_link(story, "worker-0")
    assert story.pids() == begun
    assert_nothing_was_lost(story)


def flip_a_bit(story, victim):
    """It is noticed, the step is done again, nobody is to blame for good."""
    injection = hurt_links.flip(story.drill, victim)
    assert injection is not None
    broken = story.decision("ring_broken", injection.at_s)
    assert broken.fields["evidence"] in ("corrupt", "reset")
    story.settle()


def cut_a_link(story, victim):
    """Two of three cannot hear each other: one stays out until they can; nobody is restarted."""
    roster = story.scene.roster
    other = roster[(roster.index(victim) + 1) % len(roster)]
    injection = story.drill.begin("link", victim, other)
    ways = [(victim, other), (other, victim)]
    for way in ways:
        story.cluster.network.cut(*way)
    bad = story.decision("link_bad", injection.at_s)
    assert bad.at_s - injection.at_s < EVICTED_S
    assert bad.fields["evidence"] in ("silent", "unreachable")
    assert victim in bad.fields["message"]
    assert other in bad.fields["message"]
    story.decision("generation_running", injection.at_s, containing="2 workers")
    story.advances()
    for way in ways:
        story.cluster.network.restore(*way)
    injection.over_s = time.time()
    story.settle()
