"""A script with its own loop as a job: shipped, trained, recovered, and told what it does wrong."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dtd.wire import messages as m
from tests.integration.conftest import PATIENCE_S, Command, Daemons
from tests.integration.fork_client import ForkServers

pytestmark = pytest.mark.integration

SCRIPT = str(Path(__file__).with_name("loop_script.py"))
WRONG = str(Path(__file__).with_name("wrong_loops.py"))
STEPS = 32
HOLD = 10


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator and three workers."""
    return start_daemons(3)


def run(dtdctl: Command, *arguments: str) -> str:
    """Submit the script; returns its job."""
    exit_code, out, err = dtdctl(
        *("run", "--workers", "3", "--set", "elastic.min_workers=2"),
        *("--set", "elastic.settle_s=1", "--", "python", SCRIPT, *arguments),
    )
    assert exit_code == 0, err
    return out.strip()


def test_a_loop_loses_a_worker_and_goes_on(daemons: Daemons, dtdctl: Command) -> None:
    gates = daemons.hold(HOLD)
    job = run(dtdctl, "", f"{gates.task['gates']}/0", str(HOLD))
    daemons.await_event("generation_running")

    def stands() -> bool:
        workers = daemons.ask(m.GetStatus())["workers"]
        return len(workers) == 3 and {one["step"] for one in workers} == {HOLD}

    daemons.until(job, stands)
    daemons.ask(m.KillWorker(name="worker-1", signal="KILL"))
    daemons.await_event("worker_lost")
    gates.open(0)
    daemons.child("worker-1").wait(PATIENCE_S)
    daemons.start_again()
    answer = daemons.wait(job)
    assert answer["state"] == "done", answer
    result = answer["result"]
    assert result["steps"] == STEPS
    assert (result["rows_missing"], result["rows_repeated"]) == (0, 0)
    assert len(set(result["replica_digests"].values())) == 1
    assert daemons.ask(m.GetStatus())["last_job"]["steps_lost"] == 0
    exit_code, out, _ = dtdctl("logs", job)
    assert exit_code == 0
    assert f"after {STEPS} steps the loss is 0." in out


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("twice", "loop_script.py begins a second run, and a job has one"),
        ("alone", "loop_script.py has ended, and has not taken a batch from run.batches()"),
    ],
)
def test_a_script_has_one_loop(daemons: Daemons, dtdctl: Command, fault: str, reason: str) -> None:
    daemons.await_idle()
    answer = daemons.wait(run(dtdctl, fault))
    assert answer["state"] == "failed"
    assert reason in answer["reason"]


def run_wrong(daemons: Daemons, dtdctl: Command, mistake: str, workers: int) -> str:
    """Submit a script that makes a mistake; returns its job."""
    daemons.await_idle()
    exit_code, out, err = dtdctl(
        *("run", "--workers", str(workers), "--set", "elastic.min_workers=2"),
        *("--set", "elastic.settle_s=1", "--"),
        *("python", WRONG, mistake, str(daemons.directory / mistake)),
    )
    assert exit_code == 0, err
    return out.strip()


@pytest.mark.parametrize(
    ("mistake", "reason"),
    [
        ("two_steps", "rank 1 calls optimizer.step() a second time for one batch (wrong_loops.py:"),
        ("leave", "the loop of rank 1 was left after step 4 (wrong_loops.py:"),
        ("clip_on_one", "hold another state than"),
        ("own_loader", "calls optimizer.step() outside of the loop over run.batches() (wrong_"),
        ("loader_as_rows", "run.batches() got a DataLoader (wrong_loops.py:"),
        ("meta_model", "the model is on the meta device"),
        ("join_twice", "another run is open (wrong_loops.py:"),
    ],
)
def test_a_mistake_fails_the_job(
    daemons: Daemons, dtdctl: Command, mistake: str, reason: str
) -> None:
    answer = daemons.wait(run_wrong(daemons, dtdctl, mistake, 2))
    assert answer["state"] == "failed"
    assert reason in answer["reason"]


@pytest.mark.parametrize(
    ("mistake", "reason"),
    [
        ("fewer_rows", "its dataset has 63 rows, not 64"),
        ("other_batch", "it trains with global_batch_size = 8, "),
        ("other_steps", "it would train 9 steps, not 8"),
    ],
)
def test_a_host_that_differs_is_told_before_the_first_step(
    daemons: Daemons, dtdctl: Command, mistake: str, reason: str
) -> None:
    job = run_wrong(daemons, dtdctl, mistake, 3)
    daemons.await_event("worker_refused", reason, job=job)
    assert daemons.wait(job)["state"] == "done"


def test_what_is_no_script_is_refused(dtdctl: Command) -> None:
    exit_code, _, err = dtdctl("run", "python", "no-script.py")
    assert exit_code == 2
    assert "is no Python script that can be shipped" in err


EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples" / "loops").glob("*.py"))
SMALL = {"classify": ["--epochs", "1"], "gpt": ["--steps", "20"]}
ALONE = {"classify", "lora"}
"""Each worker would import what they need, for seconds."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_trains(daemons: Daemons, dtdctl: Command, example: Path) -> None:
    daemons.await_idle()
    workers = 1 if example.stem in ALONE else 2
    exit_code, out, err = dtdctl(
        *("run", "--workers", str(workers), "--set", f"elastic.min_workers={workers}"),
        *("--", "python", str(example), *SMALL.get(example.stem, ())),
    )
    assert exit_code == 0, err
    answer = daemons.wait(out.strip())
    assert answer["state"] == "done", answer
    assert len(answer["result"]["replica_digests"]) == workers
    assert len(set(answer["result"]["replica_digests"].values())) == 1
    assert "step " in dtdctl("logs", out.strip())[1]


def test_the_notebook_trains_alone_and_then_on_a_cluster(
    prepared: ForkServers, tmp_path: Path
) -> None:
    """Its daemons are those of a user, which begin afresh by execve."""
    notebook = json.loads((EXAMPLES[0].parent / "digits.ipynb").read_text())
    cells = ("".join(one["source"]) for one in notebook["cells"] if one["cell_type"] == "code")
    (tmp_path / "notebook.py").write_text("\n".join(cells))
    printed = tmp_path / "printed"
    with printed.open("wb") as streams:
        process = prepared.start(
            [sys.executable, "-m", "notebook"],
            (streams, streams),
            os.environ,
            directory=str(tmp_path),
        )
    try:
        exit_code = process.wait(3 * PATIENCE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # daemons that it has left
    assert exit_code == 0, printed.read_text()
    assert "145 steps, workers: 1, loss" in printed.read_text()
    assert "145 steps, workers: 2, loss" in printed.read_text()


@pytest.mark.parametrize("name", SMALL)
def test_an_example_trains_alone(tmp_path: Path, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", name, *SMALL[name]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(EXAMPLES[0].parent)},
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "step " in done.stdout
