"""Where a local run goes, and which weights it has left there."""

from __future__ import annotations

import pwd
import shutil

import pytest
import torch
from safetensors.torch import load_file

from dtd.errors import CheckpointError, UsageError
from scripts.launch_local import newest_weights, run_directory, step_of, whole_weights
from tests.checkpoint_parts import random_state, write_part

SPEC = {"checkpoint": {"directory": ""}}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "dtd" / "runs"


def checkpoint(home, job, name):
    directory = home / job / name
    directory.mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(b"")
    return directory / "model.safetensors"


def test_a_run_is_kept_in_a_directory_of_its_own(runs):
    with (
        run_directory(None, discard=False, name="digits") as one,
        run_directory(None, discard=False, name="digits") as other,
    ):
        assert one != other
        assert one.parent == other.parent == runs
        assert one.name.startswith("digits-")
    assert one.is_dir()
    assert other.is_dir()


def test_a_user_without_a_home_is_told_where_a_run_can_be_kept(monkeypatch):
    def lacking(_user):
        raise KeyError

    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lacking)
    with (
        pytest.raises(UsageError, match="has no home directory, and HOME is not set") as caught,
        run_directory(None, discard=False, name="digits"),
    ):
        pass
    assert "--state-dir DIR" in caught.value.remedy
    with run_directory(None, discard=True, name="digits") as directory:
        assert directory.is_dir()


def test_the_newest_weights_of_the_job(tmp_path):
    assert newest_weights(tmp_path, SPEC, "a-1") is None
    checkpoint(tmp_path / "worker-0" / "checkpoints", "a-1", "g000001-s000000020")
    newest = checkpoint(tmp_path / "worker-1" / "checkpoints", "a-1", "g000002-s000000030")
    checkpoint(tmp_path / "worker-1" / "checkpoints", "a-2", "g000009-s000000090")
    checkpoint(tmp_path / "worker-1" / "checkpoints", "a-1", ".tmp-g000003-s000000040")
    assert newest_weights(tmp_path, SPEC, "a-1") == newest
    assert step_of(newest) == 30
    elsewhere = checkpoint(tmp_path / "shared", "a-1", "g000001-s000000010")
    spec = {"checkpoint": {"directory": str(tmp_path / "shared")}}
    assert newest_weights(tmp_path, spec, "a-1") == elsewhere


def test_weights_in_parts_are_put_together(tmp_path):
    state = random_state(1)
    homes = [tmp_path / f"worker-{rank}" / "checkpoints" / "a-1" for rank in range(3)]
    for rank, home in enumerate(homes):
        write_part(home, state, rank, world_size=3, mirrors=0)
    newest = newest_weights(tmp_path, SPEC, "a-1")
    assert newest is not None
    whole = load_file(whole_weights(newest, tmp_path))
    assert {f"model.{name}" for name in whole} == {
        name for name in state.tensors if name.startswith("model.")
    }
    for name, value in whole.items():
        assert torch.equal(value, state.tensors[f"model.{name}"])
    shutil.rmtree(homes[1])
    with pytest.raises(CheckpointError):
        whole_weights(newest, tmp_path)
