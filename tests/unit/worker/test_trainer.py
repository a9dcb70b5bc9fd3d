"""How a generation's end is told: to the coordinator, and to the neighbours in the ring."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dtd import job
from dtd.cluster.workers.progress import ProgressWatch
from dtd.engine.shards import WHOLE
from dtd.errors import CheckpointError, DivergenceError, TaskError, UnreadableWord
from dtd.net.clients.blocking_link import connect_tcp
from dtd.wire import messages as m
from dtd.worker.job.training_thread import TrainingThread

END_STEP = 99


class FakeRing:
    """A ring that stands, and keeps that it was given up in the journal."""

    star = None

    def __init__(self, generation, journal):
        roster = tuple(
            m.Member(name=f"worker-{rank}", incarnation=1, host="h", port=1, holds=True)
            for rank in range(3)
        )
        self.assign = m.Assign(
            job="job-1",
            generation=generation,
            roster_id=9,
            rank=0,
            roster=roster,
            held_generation=0,
            held_step=0,
        )
        self._journal = journal

    def wait_up(self):
        pass

    def give_up(self, reason):
        assert reason
        self._journal.append(("given up", self.assign.generation))


class FakeRun:
    """The training itself: each generation raises what the test says."""

    prepared_key = None

    def __init__(self, *ends):
        self._ends = list(ends)

    def leave_behind(self, branches):
        """The state that a generation starts from leaves others behind."""
        assert (branches[-1].generation, branches[-1].step) == (0, 0)

    committed_step = 0
    holds = (0, 0)
    part = WHOLE

    def expect(self, step, *, rank, world_size):
        pass

    def adopt_local(self, generation, step):
        if self._ends and isinstance(self._ends[0], CheckpointError):
            error = self._ends.pop(0)
            self.holds = getattr(error, "holds", self.holds)
            raise error

    def forget(self):
        pass

    def held(self):
        generation, step = self.holds
        return SimpleNamespace(
            job_id="job-1",
            generation=generation,
            step=step,
            digest="",
            where="memory",
            part=self.part,
        )

    def saved(self):
        return ()

    def run(self, ring, generation, *, writers, voters, servers, names):
        raise self._ends.pop(0)

    def save(self, generation, step):
        """The key says what becomes of it; the last one ends the thread."""
        if step == END_STEP:
            raise SystemExit
        if generation:
            raise CheckpointError(f"step {step} was not saved: no space left on device")


@pytest.fixture
def journal():
    return []


def made(kind, journal, post):
    document = {"job": {"name": "j", "task": "digits", "epochs": 1, "global_batch_size": 4}}
    return kind(
        m.Prepare(job="job-1", spec=document, from_job="", from_step=0, from_mode=""),
        job.from_mapping(document, source="test"),
        SimpleNamespace(
            config=SimpleNamespace(device="cpu", role="worker"),
            bridge=SimpleNamespace(posting=lambda function: function),
            data=SimpleNamespace(offer=lambda name, resource: None),
            packages=None,
            datasets=SimpleNamespace(bring=lambda *_names, **_more: []),
            environments=SimpleNamespace(versions=""),
            requests=None,
            script=None,
        ),
        silence_s=1.0,
        reporter=SimpleNamespace(
            begin_generation=lambda assign: None,
            begins=lambda kind: None,
            progress=lambda: None,
            warning=lambda event, message: journal.append((event, message)),
        ),
        watch=ProgressWatch(first_stall_limit_s=120, least_stall_limit_s=5, busy_limit_s=1800),
        post=post,
        connect=lambda: connect_tcp,
    )


def train(journal, *ends, saves=(), heard=lambda event: None):
    """Let one generation after another end so, on this thread; the last end is the trainer's."""

    def post(event):
        journal.append((type(event), getattr(event, "generation", None)))
        heard(event)

    class WarmThread(TrainingThread):
        def _warm_up(self):
            self._session = FakeRun(*ends)

    trainer = made(WarmThread, journal, post)
    for generation in range(1, len(ends) + 1):
        trainer.assign(FakeRing(generation, journal))
    for generation, step in (*saves, (0, END_STEP)):
        trainer.save(m.Save(job="job-1", generation=generation, step=step))
    with pytest.raises(SystemExit):
        trainer.run()


def test_a_word_that_cannot_be_read_breaks_the_ring_and_names_who_has_said_it(journal):
    told = []
    unreadable = UnreadableWord(1, "word of 3 bytes")
    train(journal, unreadable, TaskError("the end of the test"), heard=told.append)
    assert journal[:2] == [("given up", 1), (m.Frozen, 1)]
    froze = told[0]
    assert (froze.suspect, froze.evidence) == ("worker-1", "corrupt")
    assert froze.reason == "rank 1: word of 3 bytes"


@pytest.mark.parametrize(("dissenters", "majority"), [((2,), True), ((0, 1, 2), False)])
def test_a_worker_that_sees_replicas_differ_lets_the_others_see_it_too(
    journal, dissenters, majority
):
    differ = DivergenceError("replicas differ", dissenters=dissenters, majority=majority)
    train(journal, differ, TaskError("the end of the test"))
    assert journal[0] == (m.Frozen, 1)
    assert ("given up", 1) not in journal
