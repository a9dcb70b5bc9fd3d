"""Benchmarks run from beginning to end, with the product as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from operator import itemgetter
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 560


def bench(*arguments, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.benchrun", *arguments, "--directory", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def records(kind: str, directory: Path) -> list[dict]:
    return json.loads((directory / f"{kind}.json").read_text())["records"]


def test_allreduce(tmp_path):
    sides = "dtd;gloo"
    words = ("--quick", "--rounds", "1", "--json", "--sides", sides)
    said = bench("allreduce", *words, directory=tmp_path)
    made = records("allreduce", tmp_path)
    key = itemgetter("world", "dtype", "bytes", "side")
    assert sorted(map(json.loads, said.splitlines()), key=key) == sorted(made, key=key)
    assert {record["side"] for record in made} == set(sides.split(";"))
    assert {record["dtype"] for record in made} == {"float32", "bfloat16"}
    assert all(time_s > 0 for record in made for time_s in record["times_s"])


def test_steps_of_daemons_and_of_plain_torch(tmp_path):
    sides = "dtd stage 1;DDP + ZeRO"
    bench("sharded", "--quick", "--rounds", "1", "--sides", sides, directory=tmp_path)
    (made,) = records("sharded", tmp_path)
    assert sorted(made["steps_s"]) == ["DDP + ZeRO", "apart", "dtd stage 1"]
    assert all(len(steps_s) == 1 and min(steps_s) > 0 for steps_s in made["steps_s"].values())
    assert made["step_bytes"]["dtd stage 1"] > 0
