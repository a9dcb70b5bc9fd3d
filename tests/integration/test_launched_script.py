"""A script that does not join, as a job: started as under torchrun, restarted, ended with all."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from dtd.wire import messages as m
from tests.integration import launched_script
from tests.integration.conftest import PATIENCE_S, Command, Daemons

pytestmark = pytest.mark.integration

HOLD = 12
FAILS = """
import os, signal, sys
if os.environ["RANK"] == "1":
    print("what it says last", file=sys.stderr)
    sys.exit(3)
signal.pause()
"""
WAITS = f"""
import signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", sys.argv[1]])
print("stands at step {HOLD}", flush=True)
signal.pause()
"""
MORTAL = """
import os, sys
restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if os.environ["RANK"] == "1" and restart < int(sys.argv[1]):
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator and two workers."""
    return start_daemons(2)


def run(daemons: Daemons, dtdctl: Command, script: Path, *arguments: str) -> str:
    """Submit the script; returns its job."""
    daemons.await_idle()
    exit_code, out, err = dtdctl(
        *("run", "--set", "elastic.min_workers=2", "--", "python", str(script), *arguments)
    )
    assert exit_code == 0, err
    assert "does not call dtd.join" in err
    return out.strip()


def written(place: Path, name: str, text: str) -> Path:
    script = place / f"{name}.py"
    script.write_text(text)
    return script


def processes(folder: Path) -> list[str]:
    """Command lines of all processes that have the folder as an argument."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        found += [" ".join(words)] * (str(folder) in words)
    return found


def check_result(folder: Path) -> None:
    """It has the weights that one process computes from whole batches."""
    model, points, labels = launched_script.made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(launched_script.STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), labels).backward()
        optimizer.step()
    torch.testing.assert_close(torch.load(folder / "result.pt"), model.state_dict())


def logs(dtdctl: Command, job: str) -> str:
    exit_code, out, _ = dtdctl("logs", job)
    assert exit_code == 0
    return out


def await_hold(daemons: Daemons, job: str) -> None:
    def stand() -> bool:
        lines = daemons.ask(m.ReadLogs(job=job))["lines"]
        return sum(f"stands at step {HOLD}" in line["text"] for line in lines) == 2

    daemons.until(job, stand)


def test_ddp_trains_as_one_process_does_though_a_worker_is_killed(
    daemons: Daemons, dtdctl: Command, tmp_path: Path
) -> None:
    gates = daemons.hold(HOLD)
    place, script = str(tmp_path), Path(str(launched_script.__file__))
    job = run(daemons, dtdctl, script, place, "child", f"{gates.task['gates']}/0", str(HOLD))
    await_hold(daemons, job)
    for rank in range(2):
        assert f"rank {rank} of 2 begins at step 0, restart 0" in logs(dtdctl, job)
    assert "whose steps are its own" in dtdctl("status")[1]
    daemons.ask(m.KillWorker(name="worker-1", signal="KILL"))
    daemons.child("worker-1").wait(PATIENCE_S)
    gates.open(0)
    daemons.start_again()
    answer = daemons.wait(job)
    assert answer["state"] == "done", answer
    check_result(tmp_path)
    assert "begins at step 10, restart 1" in logs(dtdctl, job)
    assert processes(tmp_path) == []


def test_a_script_that_fails_fails_the_job(
    daemons: Daemons, dtdctl: Command, tmp_path: Path
) -> None:
    job = run(daemons, dtdctl, written(tmp_path, "fails", FAILS), str(tmp_path))
    answer = daemons.wait(job)
    assert answer["state"] == "failed"
    assert answer["reason"].startswith(
        "worker-1: fails.py has exited with code 3 (rank 1 of 2, host "
    )
    assert answer["reason"].endswith("): what it says last")
    assert processes(tmp_path) == []


@pytest.mark.parametrize(("deaths", "state"), [(2, "done"), (9, "failed")])
def test_all_restart_when_a_process_is_killed_and_not_for_ever(
    daemons: Daemons, dtdctl: Command, tmp_path: Path, deaths: int, state: str
) -> None:
    job = run(daemons, dtdctl, written(tmp_path, "mortal", MORTAL), str(deaths))
    answer = daemons.wait(job)
    assert answer["state"] == state, answer
    if state == "failed":
        assert "mortal.py was ended by SIGKILL, 4 times in a row (rank 1 of 2" in answer["reason"]


def test_a_script_outlives_the_coordinator_and_ends_with_its_job(
    daemons: Daemons, dtdctl: Command, tmp_path: Path
) -> None:
    job = run(daemons, dtdctl, written(tmp_path, "waits", WAITS), str(tmp_path))
    await_hold(daemons, job)
    before = sorted(processes(tmp_path))
    coordinator = daemons.child("coordinator")
    coordinator.signal_group(signal.SIGKILL)
    coordinator.wait(PATIENCE_S)
    daemons.start_again()
    daemons.until(job, lambda: daemons.ask(m.GetStatus())["job"]["state"] == "running")
    assert sorted(processes(tmp_path)) == before
    exit_code, _, err = dtdctl("cancel", job)
    assert exit_code == 0, err
    assert daemons.wait(job)["state"] == "cancelled"
    assert processes(tmp_path) == []
