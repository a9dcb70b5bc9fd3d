"""A short chaos run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from scripts.cluster.cluster import REPOSITORY

pytestmark = pytest.mark.integration

PATIENCE_S = 500.0
COMMAND = [sys.executable, "-m", "scripts.chaos"]
LOSSES = {
    "every job is done",
    "replicas are equal, at every step and at the end",
    "every row of every epoch exactly once",
    "no committed step is lost",
}
SMALL = ["--set", "task.parameters=20000", "--set", "task.compute_ms=30.0"]


def test_a_mix_of_faults_costs_nothing(tmp_path):
    """A damaged bit, a hang that does not take long, and a crash.

    The codec keeps on each worker what it has not sent.  How long anything takes is not judged
    here.
    """
    done = subprocess.run(
        [
            *COMMAND,
            *("--scenario", "hang", "--workers", "3", "--faults", "3", "--json"),
            *("--kinds", "flip,gil,kill", "--network", "proxied"),
            *("--codec", "powersgd", "--set", "strategy.rank=2"),
            *("--state-dir", str(tmp_path / "run"), *SMALL),
        ],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout, done.stderr
    seen = json.loads(done.stdout)
    failures = {one["name"]: one["failures"] for one in seen["checks"]}
    assert failures.keys() > LOSSES
    assert [failures[name] for name in LOSSES if failures[name]] == [], done.stderr
    assert [one["injection"]["kind"] for one in seen["outcomes"]] == ["flip", "gil", "kill"]
    assert sum(one["steps_lost"] for one in seen["outcomes"]) == 0
