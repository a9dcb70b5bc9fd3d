"""Every job of docs/examples as a user runs it: submitted, trained by two workers, fetched, loaded.

The examples are found by looking: one that is added is run.  They are tiny as they stand; those
that are not are made so here.  What needs a download runs where the data is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dtd.job import load_job

pytestmark = pytest.mark.integration

FILE = Path(__file__)
ROOT = FILE.parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.toml"))
TRAINED_WITHIN_S = 500

DOWNLOADED = {"mnist", "cifar10", "chargpt"}
"""Tasks whose data does not come with dtd; other tests run them."""

BOTH = ["elastic.min_workers=2", "elastic.settle_s=0"]
"""Nobody else is waited for."""

SMALLER = {
    "callbacks": ["job.epochs=4"],
    # Each worker compiles, for seconds.
    "compiled": [
        "job.epochs=1",
        "task.backend=eager",
        "elastic.min_workers=1",
        "elastic.workers=1",
    ],
    "digits": ["job.epochs=2"],
    "own_task": ["job.epochs=2"],
    "synthetic": ["job.steps=4", "task.parameters=10000", "task.compute_ms=0.0"],
    "vit": ["job.epochs=1", "task.width=16", "task.depth=1"],
}


@pytest.fixture(scope="module")
def cluster(start_daemons):
    """A coordinator and two workers for all examples."""
    return start_daemons(2).cluster


@pytest.fixture(scope="module")
def dtdctl(cluster, check_output):
    """Runs a command line that must succeed; what it printed, JSON as the schema says."""

    def command(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "dtd.ctl.main", *arguments],
            capture_output=True,
            text=True,
            timeout=TRAINED_WITHIN_S,
            check=False,
            cwd=ROOT,
            env={**os.environ, "DTD_COORDINATOR": str(cluster.address)},
        )
        assert done.returncode == 0, done.stderr
        if "json" in arguments:
            check_output(arguments, done.stdout)
        return done.stdout

    return command


@pytest.fixture(scope="module")
def jobs(request, dtdctl):
    """Job ids of all that are tested, submitted at once: one warms up when another is done."""
    tested = {item.callspec.params["name"] for item in request.session.items if item.path == FILE}

    def submit(example: Path) -> str:
        options = [f"--set={change}" for change in (*BOTH, *SMALLER.get(example.stem, []))]
        shown = dtdctl("submit", *options, "-o", "json", str(example.relative_to(ROOT)))
        return str(json.loads(shown)["job"])

    return {example.stem: submit(example) for example in EXAMPLES if example.stem in tested}


@pytest.mark.parametrize(
    "name", [one.stem for one in EXAMPLES if load_job(one).job.task not in DOWNLOADED]
)
def test_an_example_trains_and_its_weights_load(name, jobs, dtdctl, tmp_path, monkeypatch) -> None:
    job = jobs[name]
    dtdctl("wait", job)
    (ended,) = [one for one in json.loads(dtdctl("jobs", "-o", "json"))["jobs"] if one["id"] == job]
    assert ended["state"] == "done", ended
    result: dict[str, Any] = ended["result"]
    assert (result["rows_missing"], result["rows_repeated"]) == (0, 0)
    json.loads(dtdctl("show", job, "-o", "json"))
    lines = json.loads(dtdctl("fetch", job, str(tmp_path), "-o", "json"))["load"]
    monkeypatch.chdir(ROOT / "docs" / "examples")  # where the task is found
    found: dict[str, Any] = {}
    exec("\n".join(lines), found)
    assert sum(1 for _ in found["model"].parameters())
