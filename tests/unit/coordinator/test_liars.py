"""Workers with a good credential that lie, at a real coordinator: others notice nothing of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from dtd.errors import DtdError
from dtd.limits.quotas import NOTICES_BURST
from dtd.wire import messages as m
from dtd.worker.cluster_access import proved

STEPS = 20


@pytest.fixture
def train(daemon: Any, play: Callable[..., Any], spec: dict[str, Any]) -> tuple[Any, Any, str]:
    """An honest worker that trains alone, and another one that was let in and does not train."""
    honest = play(daemon, "honest")
    job = str(daemon.ask(m.SubmitJob(spec=spec))["job"])
    assign = honest.run_alone()
    return honest, assign, job


def events(daemon: Any, kind: str) -> list[dict[str, Any]]:
    """All events of a kind; asked after everything that was said before was acted on."""
    return [one for one in daemon.ask(m.ReadEvents())["events"] if one["kind"] == kind]


def await_event(daemon: Any, kind: str) -> dict[str, Any]:
    """The first event of a kind, as soon as it is written down."""
    seen = 0
    while True:
        page = daemon.ask(m.ReadEvents(after=seen, follow=True))
        seen = page["next"]
        for one in page["events"]:
            if one["kind"] == kind:
                return dict(one)


def is_cut_off(worker: Any) -> str:
    """The coordinator ends the connection; says why."""
    with pytest.raises(DtdError) as caught:
        worker.hear(m.Goodbye)  # which does not come
    return str(caught.value)


def progress(assign: m.Assign, step: int, loss: float = 0.5) -> m.Progress:
    return m.Progress(
        job=assign.job,
        generation=assign.generation,
        step=step,
        epoch=0,
        loss=loss,
        learning_rate=0.1,
        grad_norm=1.0,
        rows=64,
        step_s=0.1,
        compute_s=0.1,
        comm_s=0.0,
        exposed_s=0.0,
        skipped=False,
        skipped_steps=0,
    )


LIES: dict[str, Callable[[m.Assign], m.Message]] = {
    "checkpoint": lambda assign: m.CheckpointSaved(
        job=assign.job,
        generation=assign.generation,
        step=STEPS,
        digest="ab",
        size_bytes=1,
        directory="/tmp/forged",
        metrics={"accuracy": 1.0},
        kept=(),
    ),
    "progress": lambda assign: progress(assign, 19, loss=0.001),
    "evaluation": lambda assign: m.Evaluated(job=assign.job, step=19, metrics={"accuracy": 1.0}),
    "end": lambda assign: m.Finished(
        job=assign.job,
        generation=assign.generation,
        held_generation=assign.generation,
        step=STEPS,
        digest="ab",
        result={"forged": True},
    ),
    "rank": lambda assign: m.JobOutput(job=assign.job, rank=5),
}


@pytest.mark.parametrize("lie", LIES)
def test_one_that_is_no_member_cannot_speak_for_the_job(daemon, play, train, lie):
    honest, assign, job = train
    liar = play(daemon, "liar")
    liar.hear(m.Prepare)
    liar.say(LIES[lie](assign))
    assert is_cut_off(liar)
    assert await_event(daemon, "report_false")["worker"] == "liar"
    assert daemon.ask(m.ListCheckpoints(job=job))["checkpoints"] == []
    shown = daemon.ask(m.ShowJob(job=job))
    assert (shown["step"], shown["metrics"], shown["lines"]) == (0, {}, 0)
    assert daemon.ask(m.GetFigures())["loss"] == []
    honest.finish(assign)
    ended = daemon.ask(m.WaitJob(job=job))
    assert (ended["state"], "forged" in ended["result"]) == ("done", False)


def test_a_member_that_reports_another_digest_displaces_no_sound_checkpoint(daemon, play, spec):
    """All ranks agreed on one; the liar's is listed for what it is, and nobody starts from it."""
    spec["elastic"]["min_workers"] = 3
    names = ("worker-0", "worker-1", "worker-2")
    workers = {name: play(daemon, name, pid=5000 + number) for number, name in enumerate(names)}
    job = daemon.ask(m.SubmitJob(spec=spec))["job"]
    for worker in workers.values():
        worker.warm_up()
    assigns = {name: worker.hear(m.Assign) for name, worker in workers.items()}
    for name, worker in workers.items():
        one = assigns[name]
        worker.say(m.Running(job=job, generation=one.generation, step=0))
    first = assigns["worker-0"]
    key = {"job": job, "generation": first.generation, "step": 10}
    for name in names[:2]:
        workers[name].say(m.Agreed(**key, digest="ab"))
        workers[name].say(m.Heartbeat(state="running"))
        workers[name].hear(m.HeartbeatAck)  # whoever is heard first is chance
    sound = m.CheckpointSaved(
        **key,
        digest="ab",
        size_bytes=1,
        directory=f"/state/{job}/g000001-s000000010",
        metrics={},
        kept=("g000001-s000000010",),
    )
    workers["worker-0"].say(sound)
    workers["worker-2"].say(m.Agreed(**key, digest="66"))
    workers["worker-2"].say(dataclasses.replace(sound, digest="66"))
    for worker in workers.values():
        worker.say(m.Heartbeat(state="running"))
        worker.hear(m.HeartbeatAck)
    assert await_event(daemon, "checkpoint_contradicted")["worker"] == "worker-2"
    listed = {one["worker"]: one for one in daemon.ask(m.ListCheckpoints(job=job))["checkpoints"]}
    assert (listed["worker-0"]["verified"], listed["worker-2"]["verified"]) == (True, False)
    assert listed["worker-2"]["confirmation"] == "contradicted"
    active = daemon.coordinator.membership.cluster.job
    assert active.checkpoint_holders == ("worker-0",)


@pytest.mark.parametrize("evidence", ["ended", "diverged"])
def test_a_member_cannot_have_another_one_put_out(daemon, play, spec, evidence):
    """It says that the other's process has ended, or that its state differs."""
    spec["elastic"]["min_workers"] = 3
    names = ("honest-0", "honest-1", "liar")
    workers = {name: play(daemon, name, pid=6000 + number) for number, name in enumerate(names)}
    job = daemon.ask(m.SubmitJob(spec=spec))["job"]
    for worker in workers.values():
        worker.warm_up()
    assigns = {name: worker.hear(m.Assign) for name, worker in workers.items()}
    number = assigns["liar"].generation
    for worker in workers.values():
        worker.say(m.Running(job=job, generation=number, step=0))
    held = m.Held(job=job, generation=0, step=0, digest="", where="memory")
    frozen = m.Frozen(
        job=job,
        generation=number,
        roster_id=assigns["liar"].roster_id,
        prepared_generation=0,
        prepared_step=0,
        held=(held,),
        suspect="honest-1",
        evidence=evidence,
        reason="forged",
        compared_digest="ab",
    )
    workers["liar"].say(frozen)
    for name in names[:2]:
        workers[name].hear(m.Freeze)
        workers[name].say(dataclasses.replace(frozen, suspect="", evidence="", reason="told to"))
    again = {name: worker.hear(m.Assign) for name, worker in workers.items()}
    assert {len(one.roster) for one in again.values()} == {3}
    assert {one.holds for one in again["liar"].roster} == {True}
    assert events(daemon, "worker_lost") == []
    told = [one["worker"] for one in events(daemon, "report_contradicted")]
    assert told == (["liar"] if evidence == "diverged" else [])


def test_one_that_was_not_asked_to_prepare_prints_nothing_for_a_job(daemon, play, train, spec):
    """A job that waits in the queue has no members yet."""
    _, _, job = train
    queued = daemon.ask(m.SubmitJob(spec=spec))["job"]
    liar = play(daemon, "liar")
    liar.hear(m.Prepare)
    liar.say(m.JobOutput(job=queued, rank=0), b"forged")
    liar.say(m.Notice(job=queued, event="settings_ignored", message="forged"))
    liar.say(m.Heartbeat(state="warming"))
    liar.hear(m.HeartbeatAck)
    assert daemon.ask(m.ReadLogs(job=queued))["lines"] == []
    assert events(daemon, "settings_ignored") == []
    told = await_event(daemon, "report_dropped")
    assert (told["worker"], told["details"]["dropped"]) == ("liar", 1)
    assert job != queued


def claims(worker: Any, job: str, generation: int, **more: Any) -> m.Register:
    """It says that it trains in a generation of which it is the only member."""
    return dataclasses.replace(
        worker.register,
        job=job,
        generation=generation,
        roster_id=1,
        phase="running",
        roster=(
            m.Member(
                name=worker.name,
                incarnation=worker.register.incarnation,
                host="h",
                port=1,
                holds=True,
            ),
        ),
        held_generation=generation - 1,
        held_step=STEPS,
        **more,
    )


@pytest.mark.parametrize("ahead", [0, 1, 900_000])
def test_a_generation_that_a_liar_makes_up_is_not_believed(daemon, play, train, ahead):
    honest, assign, job = train
    identity = daemon.ask(m.ListJobs())["jobs"][0]["identity"]
    liar = play(daemon, "liar", joins=False)
    generation = assign.generation + ahead
    liar.say(claims(liar, job, generation, identity=identity, proof=b"x" * 32))
    assert "does not prove that it" in is_cut_off(liar)
    assert events(daemon, "store_went_back") == []
    honest.finish(assign)
    assert daemon.ask(m.WaitJob(job=job))["state"] == "done"
    known = daemon.coordinator.membership.cluster.run
    assert (known.generation, known.highest_seen) == (assign.generation, 0)


def test_a_member_that_comes_back_shows_that_it_was_one(start_daemon, play, spec):
    """Only who was told the generation's secret can, whatever the new process has forgotten."""
    first = start_daemon()
    worker = play(first)
    job = first.ask(m.SubmitJob(spec=spec))["job"]
    assign = worker.run_alone()
    identity = first.ask(m.ListJobs())["jobs"][0]["identity"]
    second = start_daemon()
    honest = dataclasses.replace(
        worker.register,
        job=job,
        generation=assign.generation,
        roster_id=assign.roster_id,
        phase="running",
        identity=identity,
        roster=assign.roster,
        held_generation=assign.held_generation,
        held_step=assign.held_step,
    )
    honest = proved(honest, assign)
    for changed in (
        {"roster_id": assign.roster_id + 1},
        {"generation": assign.generation + 1},
        {"name": "worker-1", "incarnation": 4712},
    ):
        liar = play(second, joins=False)
        liar.say(dataclasses.replace(honest, **changed))
        assert "does not prove that it" in is_cut_off(liar)
        liar.close()
    back = play(second, joins=False)
    back.say(honest)
    back.hear(m.Registered)
    back.tell_warm(job)
    back.finish(assign)
    assert second.ask(m.WaitJob(job=job))["state"] == "done"


def test_what_answers_save_is_heard_whatever_was_told_before(daemon, train):
    """An honest worker with a full disk says so at each checkpoint, and at the end once more."""
    honest, assign, job = train
    failed = m.Notice(job=job, event="checkpoint_failed", message="No space left on device")
    for _ in range(2 * int(NOTICES_BURST)):
        honest.say(failed)
    honest.say(
        m.Finished(
            job=job,
            generation=assign.generation,
            held_generation=assign.generation,
            step=STEPS,
            digest="ab",
            result={},
        )
    )
    honest.hear(m.Save)
    honest.say(failed)
    honest.hear(m.Save)
    honest.save(assign, STEPS)
    assert daemon.ask(m.WaitJob(job=job))["state"] == "done"
