"""Scripts that are started by hand: each process is a worker of its job, and of no other."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dtd.wire import messages as m
from scripts.cluster.processes import Child, stop_all
from tests.integration.conftest import LOOK_AGAIN_S, PATIENCE_S, Command, Daemons, Gates

pytestmark = pytest.mark.integration

STEPS = 32
HOLD = 10


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator, and a worker that must be left alone."""
    return start_daemons(1)


class Hands:
    """Starts scripts as a user types them."""

    def __init__(self, daemons: Daemons, directory: Path) -> None:
        self.directory = directory
        self.started: list[Child] = []
        self._environ = {
            "DTD_COORDINATOR": str(daemons.cluster.address),
            "DTD_STATE_DIR": str(directory / "state"),
        }

    def start(self, *arguments: str, settings: str = "", **environ: str) -> Child:
        here = "/usr/bin/env", f"--chdir={self.directory}"
        one = Child(
            f"script {len(self.started)}",
            [*here, sys.executable, "-m", "loop_script", *arguments],
            self.directory / f"{len(self.started)}.log",
            self._environ | {"DTD_SET": f"elastic.settle_s=0 {settings}"} | environ,
        )
        one.start()
        self.started.append(one)
        return one

    def until(self, one: Child, words: str) -> None:
        """Until it has printed them."""
        while words not in one.log_path.read_text():
            assert one.wait(LOOK_AGAIN_S) is None, one.log_tail()

    def end(self, one: Child) -> tuple[int | None, str]:
        """Its exit code and output."""
        return one.wait(PATIENCE_S), one.log_path.read_text()


@pytest.fixture
def hands(daemons: Daemons, tmp_path: Path) -> Iterator[Hands]:
    made = Hands(daemons, tmp_path)
    yield made
    stop_all(made.started, grace_s=0.0)


@pytest.fixture
def gates(daemons: Daemons) -> Gates:
    return daemons.hold(HOLD)


def job_of(daemons: Daemons, state: str = "") -> str:
    """The newest job."""
    job = daemons.ask(m.ListJobs())["jobs"][0]
    assert state in ("", job["state"]), job
    return str(job["id"])


def end_of(daemons: Daemons, job: str) -> dict[str, object]:
    answer = daemons.wait(job)
    assert answer["state"] == "done", answer
    result = answer["result"]
    assert result["steps"] == STEPS
    assert (result["rows_missing"], result["rows_repeated"]) == (0, 0)
    assert len(set(result["replica_digests"].values())) == 1
    return dict(result)


def test_processes_come_are_killed_are_interrupted_and_end(
    daemons: Daemons, hands: Hands, gates: Gates
) -> None:
    hold = ("", f"{gates.task['gates']}/0", str(HOLD))
    weights = [str(hands.directory / one) for one in ("first.pt", "alone.pt")]
    first = hands.start(*hold, weights[0], settings="elastic.min_workers=2")
    second = hands.start(*hold, settings="elastic.min_workers=2")
    for one in (first, second):
        hands.until(one, "holds")
    job = job_of(daemons, "running")
    third = hands.start(settings="elastic.min_workers=2")
    fourth = hands.start(settings="elastic.min_workers=2")
    for one in (third, fourth):
        hands.until(one, "takes part in the job loop_script as ")

    def ready() -> bool:
        workers = daemons.ask(m.GetStatus())["workers"]
        return [one["state"] for one in workers].count("ready") == 2

    daemons.until(job, ready)
    second.signal_group(signal.SIGKILL)
    daemons.await_event("worker_lost", job=job)
    third.signal_group(signal.SIGINT)
    assert hands.end(third)[0] == -signal.SIGINT
    gates.open(0)
    for one in (first, fourth):
        exit_code, said = hands.end(one)
        assert exit_code == 0, said
        assert f"after {STEPS} steps" in said
    result = end_of(daemons, job)
    assert daemons.ask(m.GetStatus())["last_job"]["steps_lost"] == 0
    digests = result["replica_digests"]
    assert isinstance(digests, dict)
    assert len(digests) == 2
    assert "worker-0" not in digests

    alone = hands.start("", "", "", weights[1], DTD_COORDINATOR="none")
    assert hands.end(alone)[0] == 0
    ours, theirs = map(torch.load, weights)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_script_that_is_started_again_goes_on_from_its_newest_checkpoint(
    daemons: Daemons, hands: Hands, gates: Gates
) -> None:
    """All processes are interrupted, and save; the job waits for the next ones."""
    hold = ("", f"{gates.task['gates']}/0", str(HOLD))
    settings = "job.name=again elastic.min_workers=2"
    both = [hands.start(*hold, settings=settings) for _ in range(2)]
    for one in both:
        hands.until(one, "holds")
    for one in both:
        one.signal_group(signal.SIGINT)
    for one in both:
        assert hands.end(one)[0] == -signal.SIGINT
    job = job_of(daemons)
    again = [hands.start(settings=settings) for _ in range(2)]
    for one in again:
        assert f"after {STEPS} steps" in hands.end(one)[1]
    assert job_of(daemons) == job
    end_of(daemons, job)
    assert daemons.events("generation_forming", job)[-1]["step"] == HOLD


def test_another_script_other_settings_or_other_rows_are_refused_with_a_clear_word(
    daemons: Daemons, hands: Hands, gates: Gates
) -> None:
    hold = ("", f"{gates.task['gates']}/0", str(HOLD))
    one = hands.start(*hold, settings="job.name=same job.seed=6")
    hands.until(one, "holds")
    job = job_of(daemons)
    other = hands.start(settings="job.name=same job.seed=7")
    exit_code, said = hands.end(other)
    assert exit_code == 1
    assert f"job {job} has been started with another script or settings: job.seed 6 -> 7" in said
    rows = hands.start("rows", settings="job.name=same job.seed=6")
    exit_code, said = hands.end(rows)
    assert exit_code == 1
    assert "its dataset has 255 rows, not 256" in said
    gates.open(0)
    assert f"after {STEPS} steps" in hands.end(one)[1]
    end_of(daemons, job)


def test_a_coordinator_that_is_started_again_finds_its_processes(
    daemons: Daemons, hands: Hands, gates: Gates
) -> None:
    hold = ("", f"{gates.task['gates']}/0", str(HOLD))
    settings = "job.name=restart elastic.min_workers=2"
    both = [hands.start(*hold, settings=settings) for _ in range(2)]
    for one in both:
        hands.until(one, "holds")
    job = job_of(daemons)
    daemons.child("coordinator").signal_group(signal.SIGKILL)
    daemons.child("coordinator").wait(PATIENCE_S)
    daemons.start_again()
    gates.open(0)
    for one in both:
        assert f"after {STEPS} steps" in hands.end(one)[1]
    end_of(daemons, job)


def test_an_error_of_the_loop_ends_the_job_in_every_process(
    daemons: Daemons, hands: Hands, dtdctl: Command
) -> None:
    settings = "job.name=error elastic.min_workers=2"
    both = [hands.start("no-step", settings=settings) for _ in range(2)]
    for one in both:
        assert "asks for its next batch, and has not called optimizer.step()" in hands.end(one)[1]
    assert daemons.wait(job_of(daemons))["state"] == "failed"
    exit_code, out, _ = dtdctl("status")
    assert exit_code == 0
    assert "worker-0" in out
