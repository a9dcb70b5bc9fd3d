"""Damaged checkpoints are never loaded, and the trials would notice if they were."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from dtd.checkpoint.format import checkpoint_name, list_checkpoints, verify
from dtd.train import restore
from scripts.checkpoint_faults import FAULTS, JOB, Trials, main, run_trials, sound
from scripts.checkpoint_saver import NOT_SAVED


@pytest.fixture
def trials(tmp_path):
    made = Trials(tmp_path)
    yield made
    made.close()


def test_a_few_trials(tmp_path) -> None:
    done, wrong = run_trials(10, 1, tmp_path)
    assert wrong == []
    assert done.total() >= 10


def test_the_table(capsys) -> None:
    assert main(["--count", "1", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "| bit flipped |" in out
    assert "bad loads 0" in out


@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in ("empty directory",)])
def test_every_fault_does_something(trials, fault) -> None:
    job = trials._live / JOB
    before = sound(job)
    names = {path.name for path in job.iterdir()}
    FAULTS[fault](job, random.Random(1))
    after = sound(job)
    if fault in ("killed while saving", "no space", "read-only directory"):
        assert after[-len(before) :] == before
        leftovers = {path.name for path in job.iterdir()} - names
        assert bool(leftovers) == (fault == "killed while saving")
    else:
        assert len(after) == len(before) - 1


def test_a_reader_that_does_not_look_is_found_out(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(restore.Origin, "_pass_over", lambda origin, path, why: None)
    _, wrong = run_trials(6, 1, tmp_path)
    assert wrong


@pytest.mark.parametrize("event", [1, 30, 43])
def test_killed_while_saving_then_saved_by_another(trials, event) -> None:
    job = trials._live / JOB
    newest = sound(job)[0]
    save = [sys.executable, "-m", "scripts.checkpoint_saver", str(newest), str(job)]
    died = subprocess.run([*save, "2", "--die-at", str(event)], check=False)
    assert died.returncode == -9
    assert len(sound(job)) == len(list_checkpoints(job.parent, JOB))
    assert subprocess.run([*save, "3"], check=False).returncode == 0
    assert sound(job)[0].name == checkpoint_name(3, 6)
    assert not list(job.glob(".tmp-*"))


def test_no_space_is_said(trials) -> None:
    job = trials._live / JOB
    newest = sound(job)[0]
    save = [sys.executable, "-m", "scripts.checkpoint_saver", str(newest), str(job), "2"]
    full = subprocess.run(
        [*save, "--file-limit", "9000"], check=False, capture_output=True, text=True
    )
    assert full.returncode == NOT_SAVED
    assert "g000002-s000000006 was not saved: OSError" in full.stderr
    assert verify(newest).step == 6
