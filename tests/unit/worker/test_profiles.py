"""Orders to profile, and the files that they leave."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from dtd.errors import CheckpointError
from dtd.train.profile import StepProfiler
from dtd.wire import messages as m
from dtd.worker.measure import MOST_KEPT, PROFILE, Profiles


@pytest.fixture
def told():
    return []


@pytest.fixture
def profiles(tmp_path, told):
    return Profiles(tmp_path, told.append)


@pytest.fixture
def job():
    return SimpleNamespace(job="digits-1", profiler=StepProfiler())


def order(**changed):
    usual = {"number": 7, "what": PROFILE, "spec": {}, "job": "digits-1", "steps": 5}
    return m.Measure(
        **{**usual, "limit_s": 9.0, "profile": "digits-1-99", "first_step": 3, **changed}
    )


def test_the_training_thread_is_asked_and_the_answer_is_told(profiles, job, told, tmp_path):
    profiles.begin(order(), job)
    asked = job.profiler.asked
    assert (asked.steps, asked.limit_s, asked.first_step) == (5, 9.0, 3)
    assert asked.path == tmp_path / "profiles" / "digits-1-99.json.gz"
    asked.done({"steps": 4, "note": ""})
    assert told == [m.Measured(number=7, figures={"steps": 4, "note": ""})]
    asked.done({"reason": "the disk is full"})
    assert told[1] == m.Measured(number=7, figures={}, reason="the disk is full")


def test_what_cannot_be_done_is_refused(profiles, job, told):
    profiles.begin(order(), None)
    profiles.begin(order(job="other-1"), job)
    profiles.begin(order(profile="../etc"), job)
    profiles.begin(order(), job)
    profiles.begin(order(), job)
    reasons = [one.reason for one in told]
    assert reasons[:2] == [
        "this worker does not train digits-1",
        "this worker does not train other-1",
    ]
    assert "does not name a profile" in reasons[2]
    assert reasons[3] == "a profile is under way on this worker"


def test_the_newest_files_are_kept_and_can_be_fetched(profiles, job, tmp_path):
    directory = tmp_path / "profiles"
    directory.mkdir()
    for age in range(MOST_KEPT + 2):
        path = directory / f"old-{age}.json.gz"
        path.write_bytes(b"x")
        os.utime(path, (1000 - age, 1000 - age))
    profiles.begin(order(), job)
    job.profiler.asked.done({"steps": 1})
    assert sorted(path.name for path in directory.iterdir()) == [
        f"old-{age}.json.gz" for age in range(MOST_KEPT)
    ]
    found = profiles.open("profile/old-1")
    (blob,) = found.blobs
    assert (blob.name, blob.read(0, 1)) == ("old-1.json.gz", b"x")
    assert "hash" in json.loads(found.manifest)["files"]["old-1.json.gz"]


@pytest.mark.parametrize("name", ["profile/none", "profile/../a", "profile/", "profile/a/b"])
def test_nothing_else_is_served(profiles, name):
    with pytest.raises(CheckpointError, match="is not on this worker's disk"):
        profiles.open(name)
