"""Checkpoints that workers have in parts: listed, fetched, and started from by other jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.numpy

from tests.integration.conftest import Command

pytestmark = pytest.mark.integration

JOB = """
[job]
name = "parts"
task = "digits"
epochs = 1
global_batch_size = 256
[checkpoint]
every_steps = 2
keep = 9
[elastic]
settle_s = 0.0
min_workers = 3
[optimizer]
name = "adamw"
lr = 0.001
[strategy]
name = "sharded"
mirrors = 0
"""
STEPS = 6  # of an epoch


@pytest.fixture(scope="module")
def daemons(start_daemons):
    return start_daemons(3)


def finished(dtdctl: Command, *submit: str) -> str:
    """Have a job done; its id."""
    exit_code, out, err = dtdctl(*submit, "--wait")
    assert exit_code == 0, err
    return out.strip()


def weights(directory: Path) -> dict:
    return dict(safetensors.numpy.load_file(directory / "model.safetensors"))


def test_what_three_workers_have_in_parts(daemons, dtdctl, tmp_path) -> None:
    """No shard is on two disks, so all three are needed for the whole."""
    file = tmp_path / "job.toml"
    file.write_text(JOB)
    done = finished(dtdctl, "submit", str(file))
    daemons.await_idle()

    exit_code, out, err = dtdctl("checkpoints", done, "-o", "wide")
    assert exit_code == 0, err
    newest = out.splitlines()[1].split()
    assert newest[:3] == [done, "1", str(STEPS)]
    assert newest[5].count(",") == 2
    assert newest[6:8] == ["yes", "yes"]

    exit_code, _out, err = dtdctl("fetch", done, str(tmp_path / "sharded"))
    assert exit_code == 0, err
    assert "merged from the parts of" in err

    plain = tmp_path / "plain.toml"
    plain.write_text(JOB[: JOB.index("[strategy]")].replace("epochs = 1", "epochs = 2"))
    longer = finished(dtdctl, "submit", str(plain), "--resume-from", done)
    daemons.await_idle()
    _exit_code, out, _err = dtdctl("show", longer, "-o", "json")
    known = json.loads(out)
    assert {one["step"] for one in known["checkpoints"]} == {6, 8, 10, 12}  # not 2 and 4
    assert (known["result"]["rows_missing"], known["result"]["rows_repeated"]) == (0, 0)

    finished(dtdctl, "submit", str(plain), "--weights-from", f"{done}@{STEPS}")
    daemons.await_idle()
    _exit_code, out, _err = dtdctl("events", "-o", "json")
    assert "checkpoint_passed_over" not in out
    exit_code, _out, err = dtdctl("fetch", longer, str(tmp_path / "longer"))
    assert exit_code == 0, err
    before, after = weights(tmp_path / "sharded"), weights(tmp_path / "longer")
    assert before.keys() == after.keys()
    assert any((before[name] != after[name]).any() for name in before)
