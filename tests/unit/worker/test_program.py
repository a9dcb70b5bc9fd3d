"""`python -m dtd.worker` has an interpreter that is fit for jobs before it imports the worker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dtd.worker import __main__ as program
from dtd.worker import process_state

WORKER = """
import json, os, sys

def main(given):
    print(json.dumps({
        "given": given,
        "randomised": sys.flags.hash_randomization,
        "seed": os.environ["PYTHONHASHSEED"],
        "safe": sys.flags.safe_path,
        "path": os.environ.get("PYTHONPATH"),
        "file": __file__,
    }))
    return 7
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory with a package dtd whose worker tells in which interpreter it runs."""
    worker = tmp_path / "checkout" / "dtd" / "worker"
    worker.mkdir(parents=True)
    for package in (worker.parent, worker):
        (package / "__init__.py").touch()
    for module in (program, process_state):
        assert module.__file__ is not None
        shutil.copy(module.__file__, worker)
    (worker / "main.py").write_text(WORKER)
    return worker.parents[1]


def told(directory: Path, **variables: str) -> dict[str, Any]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-m", "dtd.worker", "--name", "a b"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=directory,
        env=environment | variables,
    )
    assert done.returncode == 7, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("seed", ["random", "5", "0"])
def test_its_interpreter_orders_sets_as_all_workers_do(checkout, tmp_path, seed) -> None:
    path = f"{checkout}{os.pathsep}/elsewhere"
    found = told(tmp_path, PYTHONPATH=path, PYTHONHASHSEED=seed)
    assert found == {
        "given": ["--name", "a b"],
        "randomised": 0,
        "seed": "0",
        "safe": True,
        "path": path,
        "file": str(checkout / "dtd/worker/main.py"),
    }


def test_in_a_checkout_that_is_installed_nowhere_it_stays_the_checkouts(checkout) -> None:
    found = told(checkout, PYTHONPATH="/elsewhere")
    assert found["path"] == f"{checkout}{os.pathsep}/elsewhere"
    assert found["file"] == str(checkout / "dtd/worker/main.py")
    assert found["safe"]
    assert told(checkout)["path"] == str(checkout)
