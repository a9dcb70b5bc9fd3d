"""Several jobs on workers of their own: who gets which worker, and what each machine is told."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster import machine
from dtd.cluster.events import (
    CancelRequested,
    DeleteRequested,
    DrainRequested,
    FromWorker,
    JobEnded,
    JobSaved,
    KillRequested,
    SaveJob,
    Send,
    Submitted,
    Ticked,
    WorkerLost,
)
from dtd.cluster.records import Job, Worker
from dtd.cluster.several_jobs import giving, pools
from dtd.cluster.several_jobs.pools import Pools
from dtd.cluster.state import CoordinatorIdentity
from dtd.cluster.transitions import GenerationState, JobState, WorkerState
from dtd.cluster.workers import admission
from dtd.errors import RequestRefused
from dtd.wire import messages as m
from tests.registrations import registration

REGISTER: dict[str, Any] = {
    "name": "w",
    "incarnation": 1,
    "pid": 1,
    "host": "h",
    "device": "cpu",
    "data_host": "h",
    "data_port": 1,
    "version": "0",
}


class Cluster:
    """Pools, a clock, and what they have answered; whatever is to be stored is stored at once."""

    def __init__(self, **arguments: Any) -> None:
        self.pools = Pools(**arguments)
        self.now = 0.0
        self.sent: list[Send] = []
        self.ended: list[Job] = []
        self.incarnations: dict[str, int] = {}

    def handle(self, event: Any) -> None:
        announced = []
        for effect in self.pools.handle(event, self.now):
            if isinstance(effect, SaveJob) and effect.announces:
                announced.append(effect)
            elif isinstance(effect, Send):
                self.sent.append(effect)
            elif isinstance(effect, JobEnded):
                self.ended.append(effect.job)
        self.pools.check_invariants()
        for one in announced:
            self.handle(JobSaved(job=one.job.id, generation=one.announces))

    def submit(
        self,
        number: int,
        workers: int | str = 0,
        *,
        owners: str = "",
        priority: int = 0,
        **more: Any,
    ) -> Job:
        elastic = {"min_workers": 1, "max_workers": 64, "settle_s": 0.0, "workers": workers}
        elastic["priority"] = priority
        spec: dict[str, Any] = {"job": {"name": "j"}, "elastic": elastic}
        if owners:
            spec["strategy"] = {"name": "sharded", "owners": owners}
        job = Job(id=f"j-{number}", spec=spec, **more)
        self.handle(Submitted(job=job))
        return job

    def register(self, *names: str, **more: Any) -> None:
        for name in names:
            self.incarnations[name] = self.incarnations.get(name, 0) + 1
            known = {"incarnation": self.incarnations[name], "pid": self.incarnations[name]}
            register = m.Register(**{**REGISTER, "name": name, **known, **more})
            self.handle(FromWorker(name=name, message=register))

    def warmed(self, *names: str, held: tuple[m.Held, ...] = ()) -> None:
        for name in names:
            job = self.pools.cluster_of(name).job
            assert job is not None
            warmed = m.Warmed(
                job=job.id,
                dataset_rows=100,
                dataset_fingerprint="d",
                plan_digest="p",
                numerics_fingerprint="n",
                parameters=1,
                steps_total=10,
                held=held,
            )
            self.handle(FromWorker(name=name, message=warmed))

    def runs(self, *names: str) -> None:
        for name in names:
            cluster = self.pools.cluster_of(name)
            assert cluster.job is not None
            running = m.Running(
                job=cluster.job.id,
                generation=cluster.run.generation,
                step=cluster.job.start_step,
            )
            self.handle(FromWorker(name=name, message=running))

    def ends(self, name: str) -> None:
        """The job of a worker that trains alone is done."""
        cluster = self.pools.cluster_of(name)
        assert cluster.job is not None
        known = {"job": cluster.job.id, "generation": cluster.run.generation, "step": 10}
        saved = m.CheckpointSaved(
            **known, digest="", size_bytes=1, directory="", metrics={}, kept=()
        )
        self.handle(FromWorker(name=name, message=saved))
        finished = m.Finished(
            **known, held_generation=cluster.run.generation, digest="x", result={}
        )
        self.handle(FromWorker(name=name, message=finished))

    def commits(self, step: int, *names: str) -> None:
        for name in names:
            cluster = self.pools.cluster_of(name)
            assert cluster.job is not None
            beat = m.Heartbeat(
                state="running",
                job=cluster.job.id,
                generation=cluster.run.generation,
                step=step,
            )
            self.handle(FromWorker(name=name, message=beat))

    def freezes(self, step: int, *names: str) -> None:
        """The members leave their generation after so many steps."""
        for name in names:
            cluster = self.pools.cluster_of(name)
            assert cluster.job is not None
            job, number = cluster.job.id, cluster.run.generation
            held = m.Held(job=job, generation=number, step=step, digest="", where="memory")
            frozen = m.Frozen(
                job=job,
                generation=number,
                roster_id=1,
                prepared_generation=number,
                prepared_step=step,
                held=(held,),
                suspect="",
                evidence="",
                reason="at a boundary",
            )
            self.handle(FromWorker(name=name, message=frozen))

    def passes(self, seconds: float) -> None:
        """Time passes, with heartbeats of all workers that are there."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 0.5)
            for name in self.places():
                cluster = self.pools.cluster_of(name)
                beat = m.Heartbeat(state="", generation=cluster.run.generation)
                self.handle(FromWorker(name=name, message=beat))
            self.handle(Ticked())

    def told(self, kind: type) -> dict[str, Any]:
        """The last message of this kind to each worker."""
        return {one.name: one.message for one in self.sent if isinstance(one.message, kind)}

    def lose(self, name: str) -> None:
        self.handle(
            WorkerLost(name=name, incarnation=self.incarnations[name], reason="gone", farewell=True)
        )

    def places(self) -> dict[str, str]:
        """The job of each worker that is not gone."""
        pools = self.pools
        return {
            name: (job.id if (job := pools.cluster_of(name).job) is not None else "")
            for name, worker in sorted(pools.workers().items())
            if worker.state not in (WorkerState.LOST, WorkerState.RELEASED)
        }

    def phase(self, job: str) -> GenerationState:
        return self.pools.cluster_with(job).run.phase


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def two(cluster: Cluster) -> Cluster:
    """Two jobs run, on two workers each; w5 idles."""
    cluster.register("w1", "w2", "w3", "w4", "w5")
    cluster.submit(1, workers=2)
    cluster.submit(2, workers=2)
    cluster.warmed("w1", "w2", "w3", "w4")
    cluster.runs("w1", "w2", "w3", "w4")
    return cluster


def test_two_jobs_run_on_disjoint_rosters(two: Cluster) -> None:
    assert two.places() == {"w1": "j-1", "w2": "j-1", "w3": "j-2", "w4": "j-2", "w5": ""}
    assert {two.phase("j-1"), two.phase("j-2")} == {GenerationState.RUNNING}
    one, other = (two.pools.cluster_with(job).run.generation for job in ("j-1", "j-2"))
    assert one != other
    assert [job.id for job in two.pools.active()] == ["j-1", "j-2"]
    assert two.pools.cluster is two.pools.cluster_with("j-1")
    assert two.pools.explanations() == {"j-1": "", "j-2": ""}
    assert two.pools.explain() == ""
    assert two.pools.explanations() == {"j-1": "", "j-2": ""}
    assert two.pools.hears("w1", m.Heartbeat(state="running"))


def test_a_lost_worker_is_replaced_by_an_idle_one_and_idles_when_it_returns(two: Cluster) -> None:
    two.lose("w3")
    assert two.places()["w5"] == "j-2"
    two.register("w3")
    assert two.places()["w3"] == "j-2"  # its generation is not known to have stopped


def test_what_a_job_has_beyond_its_number_is_released(two: Cluster) -> None:
    home, machine = two.pools.home, two.pools.all_clusters()[2]
    assert machine.job is not None
    worker = home.workers["w5"]
    pools._move(worker, home, machine, two.now)
    admission.prepare(machine, worker, machine.job)
    two.warmed("w5")
    released = [one.name for one in two.sent if isinstance(one.message, m.Release)]
    assert released == ["w5"]
    assert "w5" not in two.places()
    two.register("w5")
    assert two.places()["w5"] == ""


def test_a_job_begins_when_enough_workers_idle_and_none_overtakes(two: Cluster) -> None:
    two.submit(3, workers=2)
    two.submit(4, workers=1)
    assert [job.id for job in two.pools.home.queue] == ["j-3", "j-4"]
    assert two.pools.explain_queue() == "j-3 takes 2 workers; 1 idle; before it: j-1, j-2"
    two.register("w6", "w7")
    assert two.places()["w5"] == two.places()["w6"] == "j-3"
    assert two.places()["w7"] == "j-4"
    assert two.pools.explain_queue() == ""


def test_a_job_that_takes_all_waits_for_the_others_and_they_for_it(cluster: Cluster) -> None:
    cluster.submit(1, workers=1)
    cluster.submit(2)
    cluster.submit(3, workers=1)
    cluster.register("w1", "w2")
    assert cluster.places() == {"w1": "j-1", "w2": ""}
    assert cluster.pools.explain_queue() == "j-2 takes all workers: it begins after j-1"
    cluster.warmed("w1")
    cluster.runs("w1")
    cluster.ends("w1")
    assert [job.id for job in cluster.ended] == ["j-1"]
    assert cluster.places() == {"w2": "j-2"}
    assert cluster.pools.explain_queue() == "j-3 begins after j-2, which takes all workers"
    cluster.register("w1")
    assert cluster.places() == {"w1": "j-2", "w2": "j-2"}
    cluster.handle(CancelRequested(job="j-2"))
    cluster.register("w1", "w2")
    assert cluster.places() == {"w1": "j-3", "w2": ""}


def test_only_so_many_jobs_run_at_once(cluster: Cluster, monkeypatch: Any) -> None:
    monkeypatch.setattr(giving, "MOST_POOLS", 1)
    cluster.register("w1", "w2")
    cluster.submit(1, workers=1)
    cluster.submit(2, workers=1)
    assert cluster.pools.explain_queue() == "j-2 waits: 1 jobs run already"


def test_a_worker_that_is_set_aside_for_a_job_works_for_others_and_is_tried_again(
    cluster: Cluster,
) -> None:
    cluster.register("w1", "w2")
    cluster.submit(1, workers=2)
    cluster.warmed("w2")
    failed = m.Failed(job="j-1", reason="no driver", traceback="")
    cluster.handle(FromWorker(name="w1", message=failed))
    cluster.register("w1", pid=1)
    assert cluster.places() == {"w1": "", "w2": "j-1"}
    retry_at = cluster.pools.cluster_with("j-1").set_aside["w1"].until
    cluster.register("w3", "w4")
    assert cluster.places()["w3"] == "j-1"
    cluster.lose("w3")
    assert cluster.places()["w4"] == "j-1"
    cluster.lose("w4")
    assert (cluster.pools.next_deadline(0.0) or 0.0) <= retry_at
    for cluster.now in (retry_at - 1.0, retry_at):
        for name in ("w1", "w2"):
            beat = m.Heartbeat(state="")
            cluster.handle(FromWorker(name=name, message=beat))
    assert cluster.places()["w1"] == "j-1"


def test_requests_reach_the_machine_that_they_concern(two: Cluster) -> None:
    two.handle(DrainRequested(name="w3"))
    assert two.pools.cluster_of("w3").workers["w3"].leaving
    assert two.places()["w5"] == "j-2"  # its heir
    two.handle(KillRequested(name="w1", signal="KILL"))
    assert any(isinstance(one.message, m.Signal) for one in two.sent)
    with pytest.raises(RequestRefused, match="no worker 'w9'") as refused:
        two.handle(DrainRequested(name="w9"))
    assert refused.value.remedy == "connected: w1, w2, w3, w4, w5"
    with pytest.raises(RequestRefused, match="has not ended"):
        two.handle(DeleteRequested(job="j-2"))
    two.handle(DeleteRequested(job="j-9"))
    two.handle(CancelRequested(job="j-1"))
    job = two.pools.cluster_with("j-1").job
    assert job is not None
    assert job.state is JobState.STOPPING


def test_jobs_that_were_active_go_on_where_they_were(cluster: Cluster) -> None:
    first = cluster.submit(
        1, workers=1, state=JobState.RUNNING, announced=True, roster=("w1",), generation=7
    )
    cluster.submit(2, workers=1, state=JobState.RUNNING, announced=True, roster=("w2",))
    cluster.submit(3, workers=1)
    assert [job.id for job in cluster.pools.active()] == ["j-1", "j-2"]
    back = {"job": "j-1", "generation": 7, "phase": "running", "identity": first.identity}
    cluster.register("w2", "w1", **back)
    assert cluster.places()["w1"] == "j-1"


def test_jobs_that_had_begun_are_taken_up_first(cluster: Cluster) -> None:
    """A store that failed in between has a queued job before the one that trains."""
    jobs = [Job(id=f"j-{n}", spec={"job": {"name": "j"}}) for n in (1, 2, 3, 4)]
    jobs[2].state, jobs[3].state = JobState.STOPPING, JobState.RUNNING
    assert [job.id for job in pools.in_order(jobs)] == ["j-3", "j-4", "j-1", "j-2"]


def test_one_that_may_hold_the_newest_state_goes_to_its_job(cluster: Cluster) -> None:
    cluster.register("w1", "w2")
    cluster.submit(
        1,
        workers=1,
        state=JobState.WAITING,
        roster=("w3",),
        generation=2,
        checkpoint_generation=2,
        checkpoint_step=5,
        checkpoint_holders=("w3",),
    )
    assert cluster.places() == {"w1": "j-1", "w2": ""}
    cluster.register("w3")
    assert cluster.places()["w3"] == "j-1"


def test_all_begins_again_with_the_job_at_fault_first(two: Cluster) -> None:
    two.submit(3, workers=2)
    two.pools._at_work = two.pools.all_clusters()[2]
    left = two.pools.begin_again(given_up=True)
    assert [job.id for job in left] == ["j-1", "j-3"]
    assert [one.job.id for one in two.pools.take_decided() if isinstance(one, JobEnded)] == ["j-2"]
    assert two.pools.workers() == {}
    assert two.pools.home.run.highest == 2


def test_an_error_leaves_what_was_decided_before_it(two: Cluster, monkeypatch: Any) -> None:
    broken, advance = two.pools.all_clusters()[2], machine._advance

    def fails(cluster: Any) -> None:
        if cluster is broken:
            raise KeyError("a defect")
        advance(cluster)

    monkeypatch.setattr(machine, "_advance", fails)
    with pytest.raises(KeyError):
        two.pools.handle(CancelRequested(job="j-1"), 1.0)
    kinds = {type(effect) for effect in two.pools.take_decided()}
    assert SaveJob in kinds
    assert two.pools.take_decided() == []


def test_a_worker_that_works_for_another_job_meanwhile_stays_there_when_the_first_ends() -> None:
    here = CoordinatorIdentity(version="0")
    cluster = Cluster(identity=here, last_generation=5)
    cluster.register("w1", "w2")
    cluster.submit(1, workers=2)
    cluster.warmed("w2")
    failed = m.Failed(job="j-1", reason="no driver", traceback="")
    cluster.handle(FromWorker(name="w1", message=failed))
    cluster.register("w1", pid=1)
    cluster.submit(2, workers=1)
    assert cluster.places() == {"w1": "j-2", "w2": "j-1"}
    cluster.runs("w2")
    cluster.pools.all_clusters()[1].workers["w1"] = stale = Worker(
        registration=registration(name="w1", incarnation=1), state=WorkerState.LOST
    )
    assert cluster.pools.workers()["w1"] is not stale
    cluster.ends("w2")
    assert cluster.places() == {"w1": "j-2"}
    assert cluster.pools.cluster_with("j-1") is cluster.pools.home


def test_a_job_whose_origin_no_worker_has_gets_one_more_at_a_time(cluster: Cluster) -> None:
    cluster.register("w1", "w2", "w3")
    cluster.submit(1, workers=1, from_job="j-0", from_step=5)
    cluster.warmed("w1")
    assert cluster.places() == {"w1": "j-1", "w2": "j-1", "w3": ""}
    held = m.Held(job="j-0", generation=1, step=5, digest="", where="checkpoint")
    cluster.warmed("w2", held=(held,))
    assert cluster.places()["w3"] == ""


def test_a_job_with_parameter_servers_gets_those_that_idle(cluster: Cluster) -> None:
    cluster.register("s1", "s2", serves=True)
    cluster.register("w1", "w2")
    cluster.submit(1, workers=1)
    cluster.submit(2, workers=1, owners="servers")
    cluster.submit(3, workers=1, owners="servers")
    assert cluster.places() == {"s1": "j-2", "s2": "j-2", "w1": "j-1", "w2": "j-2"}
    cluster.register("w3")
    said = "j-3 takes 1 worker and a parameter server; 1 idle; before it: j-1, j-2"
    assert cluster.pools.explain_queue() == said


@pytest.fixture
def by_hand(cluster: Cluster) -> Cluster:
    """A job that takes all workers, and one whose two processes were started by hand."""
    cluster.register("w")
    cluster.submit(1)
    spec = {"job": {"name": "h"}, "elastic": {"by_hand": True, "settle_s": 0.0}}
    cluster.handle(Submitted(job=Job(id="h-2", spec=spec)))
    cluster.register("a", "b", joined="h-2")
    return cluster


def test_processes_started_by_hand_get_their_job_and_no_other_does(by_hand: Cluster) -> None:
    by_hand.warmed("w", "a", "b")
    by_hand.runs("w", "a", "b")
    jobs = {name: by_hand.pools.cluster_of(name).job.id for name in "wab"}  # type: ignore[union-attr]
    assert jobs == {"w": "j-1", "a": "h-2", "b": "h-2"}
    by_hand.register("v")
    by_hand.register("c", joined="h-2")
    assert by_hand.pools.cluster_of("v").job is by_hand.pools.home.job
    assert by_hand.pools.cluster_of("c") is by_hand.pools.cluster_of("a")
    by_hand.handle(WorkerLost(name="a", incarnation=1, reason="killed"))
    by_hand.handle(WorkerLost(name="b", incarnation=1, reason="killed"))
    assert by_hand.pools.cluster_of("v").job is by_hand.pools.home.job, "it replaces nobody"


def test_a_process_whose_job_has_ended_is_told_so(by_hand: Cluster) -> None:
    by_hand.handle(CancelRequested(job="h-2"))
    by_hand.register("late", joined="h-2")
    release = by_hand.sent[-1]
    assert (release.name, release.message.state) == ("late", "unknown")  # type: ignore[attr-defined]
    assert by_hand.pools.cluster_of("late").workers["late"].state is WorkerState.RELEASED


def test_a_process_that_came_while_its_job_ended_is_given_no_other(by_hand: Cluster) -> None:
    by_hand.warmed("a", "b")
    by_hand.runs("a", "b")
    by_hand.handle(CancelRequested(job="h-2"))
    by_hand.register("late", joined="h-2")
    assert by_hand.pools.cluster_of("late").workers["late"].state is WorkerState.IDLE
    by_hand.handle(CancelRequested(job="h-2"))
    for name in "ab":
        by_hand.handle(WorkerLost(name=name, incarnation=1, reason="killed"))
    assert by_hand.ended[-1].id == "h-2"
    assert by_hand.pools.cluster_of("late").workers["late"].state is WorkerState.RELEASED


def test_a_process_on_which_its_job_has_failed_ends_with_the_job(by_hand: Cluster) -> None:
    by_hand.warmed("a")
    failed = m.Failed(job="h-2", reason="no driver", traceback="")
    by_hand.handle(FromWorker(name="b", message=failed))
    by_hand.register("b", joined="h-2", pid=1)
    by_hand.handle(CancelRequested(job="h-2"))
    by_hand.handle(CancelRequested(job="h-2"))
    by_hand.handle(WorkerLost(name="a", incarnation=1, reason="killed"))
    assert by_hand.ended[-1].id == "h-2"
    by_hand.submit(3, workers=1)
    assert "b" not in by_hand.places()


def test_a_process_with_other_rows_is_told_so_and_ends(by_hand: Cluster) -> None:
    by_hand.warmed("a")
    warmed = m.Warmed(
        job="h-2",
        dataset_rows=99,
        dataset_fingerprint="d",
        plan_digest="p",
        numerics_fingerprint="n",
        parameters=1,
        steps_total=10,
        held=(),
    )
    by_hand.handle(FromWorker(name="b", message=warmed))
    release = next(one for one in by_hand.sent if isinstance(one.message, m.Release))
    assert release.name == "b"
    assert release.message == m.Release(
        job="h-2", state="refused", reason="its dataset has 99 rows, not 100"
    )


def test_jobs_of_processes_started_by_hand_begin_at_once_or_are_refused(
    cluster: Cluster, monkeypatch: Any
) -> None:
    monkeypatch.setattr(giving, "MOST_POOLS", 1)
    spec = {"job": {"name": "h"}, "elastic": {"by_hand": True}}
    cluster.handle(Submitted(job=Job(id="h-1", spec=spec)))
    waits = cluster.pools.explanations()["h-1"]
    assert waits == "0 workers ready, 1 needed; start the job's script on more hosts"
    with pytest.raises(RequestRefused, match="1 jobs run already"):
        cluster.handle(Submitted(job=Job(id="h-2", spec=spec)))
    cluster.register("w")
    taking_all = cluster.submit(3)
    assert cluster.pools.home.job is taking_all, "it does not wait for them"


# --- moves between jobs ----------------------------------------------------------------------


@pytest.fixture
def shared() -> Cluster:
    """A job that takes one to three workers trains on all three, and another one waits."""
    cluster = Cluster()
    cluster.register("w1", "w2", "w3")
    cluster.submit(1, workers="1-3")
    cluster.warmed("w1", "w2", "w3")
    cluster.runs("w1", "w2", "w3")
    cluster.commits(1, "w1")
    cluster.submit(2, workers="1-3")
    return cluster


def test_a_waiting_job_gets_a_worker_once_it_has_waited(shared: Cluster) -> None:
    assert shared.pools.next_deadline(0.0) <= pools.STEADY_S  # type: ignore[operator]
    shared.passes(pools.STEADY_S - 0.1)
    assert shared.told(m.Freeze) == {}
    shared.passes(0.2)
    frozen = shared.told(m.Freeze)
    assert {name: (one.at_boundary, one.leave) for name, one in frozen.items()} == {
        "w1": (True, False),
        "w2": (True, False),
        "w3": (True, True),
    }
    said = "j-2 takes 1 worker or more, up to 3; 0 idle; w3 to leave another job; before it: j-1"
    assert shared.pools.explain_queue() == said
    shared.freezes(2, "w1", "w2", "w3")
    assert {name: one.state for name, one in shared.told(m.Release).items()} == {"w3": "evicted"}
    shared.register("w3")
    assert shared.places() == {"w1": "j-1", "w2": "j-1", "w3": "j-2"}
    assert shared.pools.cluster_with("j-1").run.phase is GenerationState.FORMING


def test_a_worker_that_has_left_early_is_counted_once_when_it_comes(cluster: Cluster) -> None:
    """Its old record lies in the generation that still ends."""
    names = ("w1", "w2", "w3", "w4")
    cluster.register(*names)
    cluster.submit(1, workers="1-4")
    cluster.warmed(*names)
    cluster.runs(*names)
    cluster.commits(1, "w1")
    cluster.submit(2, workers="2-4")
    cluster.passes(pools.STEADY_S)
    cluster.freezes(2, "w1", "w3", "w4")
    cluster.register("w3")
    assert cluster.places() == {"w1": "j-1", "w2": "j-1", "w3": ""}
    cluster.register("w4")
    assert cluster.places() == {"w1": "j-1", "w2": "j-1", "w3": "j-2", "w4": "j-2"}


def test_jobs_that_share_say_so_and_nothing_moves_again(shared: Cluster) -> None:
    shared.passes(pools.STEADY_S)
    shared.freezes(2, "w1", "w2", "w3")
    shared.register("w3")
    shared.warmed("w3")
    shared.runs("w1", "w2", "w3")
    shared.commits(3, "w1", "w3")
    shared.sent.clear()
    shared.passes(4 * pools.REST_S)
    assert shared.told(m.Freeze) == {}
    assert shared.pools.allotments() == {
        job: {"least": 1, "most": 3, "priority": 0, "workers": number, "why": why}
        for job, number, why in (
            ("j-1", 2, "shares evenly with j-2"),
            ("j-2", 1, "shares evenly with j-1"),
        )
    }
    shared.ends("w3")
    shared.register("w3")
    assert shared.places()["w3"] == "j-1"


def test_a_worker_that_its_job_comes_to_need_stays(shared: Cluster) -> None:
    shared.passes(pools.STEADY_S)
    shared.lose("w1")
    shared.lose("w2")
    shared.freezes(2, "w3")
    assert shared.told(m.Release) == {}
    assert shared.places()["w3"] == "j-1"
    assert not shared.pools.workers()["w3"].leaving


def test_a_worker_that_is_drained_while_it_moves_is_let_go_for_good(shared: Cluster) -> None:
    shared.passes(pools.STEADY_S)
    shared.handle(DrainRequested(name="w3"))
    shared.freezes(2, "w1", "w2", "w3")
    assert {name: one.state for name, one in shared.told(m.Release).items()} == {"w3": "left"}


def test_a_worker_that_reconnects_moves_all_the_same(shared: Cluster) -> None:
    shared.passes(pools.STEADY_S)
    cluster = shared.pools.cluster_with("j-1")
    assert cluster.job is not None
    known = {"job": "j-1", "generation": cluster.run.generation, "phase": "running"}
    shared.register("w3", incarnation=1, roster_id=cluster.job.roster_id, **known)
    worker = cluster.workers["w3"]
    assert (worker.leaving, worker.moving_since) == (True, pools.STEADY_S)


def test_a_job_that_does_not_train_gives_no_worker(shared: Cluster) -> None:
    shared.lose("w2")
    shared.passes(2 * pools.STEADY_S)
    assert not any(one.leaving for one in shared.pools.workers().values())


def test_members_that_alone_have_a_shard_do_not_leave_together(cluster: Cluster) -> None:
    names = ("w1", "w2", "w3", "w4")
    cluster.register(*names)
    cluster.submit(1, workers="1-4", owners="workers")
    cluster.warmed(*names)
    cluster.runs(*names)
    cluster.commits(1, "w1")
    cluster.submit(2, workers=2)
    cluster.passes(pools.STEADY_S)
    frozen = cluster.told(m.Freeze)
    assert [name for name, one in frozen.items() if one.leave] == ["w2", "w4"]


def test_a_job_that_has_given_workers_rests(shared: Cluster) -> None:
    shared.passes(pools.STEADY_S)
    shared.freezes(2, "w1", "w2", "w3")
    shared.register("w3")
    shared.runs("w1", "w2")
    shared.commits(3, "w1")
    shared.warmed("w3")
    shared.runs("w3")
    shared.sent.clear()
    shared.submit(3, workers=1)
    shared.passes(pools.REST_S - 0.5)
    assert shared.told(m.Freeze) == {}
    shared.passes(pools.STEADY_S + 1.0)
    assert shared.told(m.Freeze)["w2"].leave


def test_the_queue_is_in_the_order_of_priorities(two: Cluster) -> None:
    two.submit(3, workers=2)
    two.submit(4, workers=2, priority=1)
    two.submit(5, workers=2, priority=1)
    begun = two.submit(6, state=JobState.RUNNING)
    assert [job.id for job in two.pools.home.queue] == [begun.id, "j-4", "j-5", "j-3"]
