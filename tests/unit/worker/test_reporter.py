"""The training thread's reports: figures, progress now and then, the job's result."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

import dtd.worker.job.reporter as reporter_module
from dtd.cluster.workers.progress import ProgressWatch
from dtd.train.record import Outcome, StepRecord
from dtd.wire import messages as m
from dtd.worker.job.reporter import (
    PROGRESS_EVERY_S,
    CommittedStep,
    JobReporter,
    progress_message,
)


def assign(*, generation=3, rank=0):
    return m.Assign(
        job="digits-1",
        generation=generation,
        roster_id=9,
        rank=rank,
        roster=(m.Member(name="worker-0", incarnation=1, host="127.0.0.1", port=1, holds=True),),
        held_generation=0,
        held_step=0,
    )


def record(step, **changed):
    values = {
        "generation": 3,
        "rank": 0,
        "step": step,
        "epoch": 0,
        "loss": 1.0 / step,
        "lr": 0.1,
        "grad_norm": 2.0,
        "rows": 64,
        "step_s": 0.5,
        "data_s": 0.1,
        "compute_s": 0.2,
        "comm_s": 0.15,
        "exposed_s": 0.05,
        "optimizer_s": 0.01,
        "sent_bytes": 3000,
        "skipped": False,
        "skipped_steps": 0,
    }
    return StepRecord(**(values | changed))


def telling(told):
    return lambda progress, steps: told.append(progress_message(progress, steps))


class Clock:
    """A clock that the test moves."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(reporter_module, "time", made)
    return made


@pytest.fixture
def told():
    return []


@pytest.fixture
def watch():
    return ProgressWatch(first_stall_limit_s=120.0, least_stall_limit_s=5.0, busy_limit_s=1800.0)


@pytest.fixture
def committed(tmp_path):
    return CommittedStep(tmp_path / "committed", "digits-1")


@pytest.fixture
def reporter(clock, told, watch, committed):
    made = JobReporter("digits-1", told.append, telling(told), watch, committed)
    made.begin_generation(assign())
    return made


def test_progress_is_told_now_and_then(reporter, clock, told):
    for step in range(1, 6):
        reporter.step_committed(record(step))
    assert [message.step for message in told] == [1]
    clock.now_s += 1.5 * PROGRESS_EVERY_S
    reporter.step_committed(record(6))
    reporter.step_committed(record(7))
    assert [message.step for message in told] == [1, 6]
    reporter.flush()
    reporter.flush()
    assert [message.step for message in told] == [1, 6, 7]
    assert told[2] == m.Progress(
        job="digits-1",
        generation=3,
        step=7,
        epoch=0,
        loss=1 / 7,
        learning_rate=0.1,
        grad_norm=2.0,
        rows=64,
        step_s=0.5,
        compute_s=0.2,
        comm_s=0.15,
        exposed_s=0.05,
        skipped=False,
        skipped_steps=0,
        steps=told[2].steps,
    )


def test_a_step_committed_at_a_take_over_is_told_and_changes_no_mean(reporter, clock, told):
    reporter.step_committed(record(1, step_s=0.5))
    clock.now_s += 2 * PROGRESS_EVERY_S
    before = reporter.heartbeat_fields()
    with structlog.testing.capture_logs() as logged:
        reporter.begin_generation(assign(generation=4))
        reporter.step_committed(
            record(2, rank=1, loss=0.25, **dict.fromkeys((*reporter_module.TIMES, "sent_bytes"), 0))
        )
    (line,) = logged
    assert (line["generation"], line["rank"], line["step"], line["loss"]) == (3, 1, 2, 0.25)
    assert [(one.generation, one.step, one.loss) for one in told] == [(3, 1, 1.0), (4, 2, 0.25)]
    after = reporter.heartbeat_fields()
    assert (after["generation"], after["step"]) == (4, 2)
    changed = {"generation", "step", "loss"}
    assert {key for key in after if after[key] != before[key]} == changed
    result = reporter.result(outcome())
    assert (result["mean_step_s"], result["samples_per_s"]) == (0.5, 128.0)


def test_a_workers_rate_is_of_its_own_rows(reporter):
    reporter.begin_generation(assign(generation=4))
    reporter.step_committed(record(1, rows=64, own_rows=16, step_s=0.5))
    told = reporter.heartbeat_fields()
    assert (told["rows"], told["samples_per_s"]) == (16, 32.0)
    assert reporter.result(outcome())["samples_per_s"] == 128.0


def outcome(**changed):
    values = {
        "kind": "finished",
        "step": 12,
        "digest": "ab",
        "skipped": 1,
        "rows_missing": 0,
        "rows_repeated": 0,
        "metrics": {"loss": 0.25, "accuracy": 0.9},
    }
    return Outcome(**(values | changed))


# --- the record of the last commit, for the next process ------------------------------------------


def test_the_next_process_finds_the_last_commit(tmp_path: Path) -> None:
    path = tmp_path / "committed"
    first = CommittedStep(path, "a")
    assert first.before == (0, 0)
    first.begin(3)
    for step in (7, 8, 9):
        first.committed(step)
    assert CommittedStep(path, "a").before == (3, 9)
