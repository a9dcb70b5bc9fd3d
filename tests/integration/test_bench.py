"""Every benchmark runs from its beginning to its end, with the product as it is."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from operator import itemgetter
from pathlib import Path

import pytest

from scripts import steps_cost, viewers_cost

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
    said = bench("allreduce", "--quick", "--rounds", "1", "--json", directory=tmp_path)
    made = records("allreduce", tmp_path)
    key = itemgetter("world", "dtype", "bytes", "side")
    assert sorted(map(json.loads, said.splitlines()), key=key) == sorted(made, key=key)
    sides = {record["side"] for record in made}
    assert {"dtd", "gloo", "limit", "limit, xxh3"} <= sides
    assert {record["dtype"] for record in made} == {"float32", "bfloat16"}
    assert all(time_s > 0 for record in made for time_s in record["times_s"])


def test_train(tmp_path):
    # Several workers and their links are in tests/unit/scripts/benchrun: fewer imports of torch.
    bench("train", "--quick", "--links", "loopback", "--worlds", "1", directory=tmp_path)
    (made,) = records("train", tmp_path)
    assert made["steps_s"].keys() == {"dtd", "ddp", "ddp-heap", "apart"}
    assert all(len(steps_s) == 2 for steps_s in made["steps_s"].values())
    # Everybody has torch in memory; a daemon that had begun afresh would not.
    assert min(made["peak_bytes"].values()) > 100 << 20


def test_the_cost_of_figures_in_a_step():
    found = steps_cost.measure(2, dataclasses.replace(steps_cost.STEP, block_steps=4))
    assert found["blocks"] == 2
    assert min(found["with_s"], found["without_s"]) > 0
    lowest, highest = found["quartiles"]
    assert lowest <= found["ratio"] <= highest
    assert found["viewer_bytes"] > 0


def test_the_cost_of_viewers():
    found = viewers_cost.measure(1, viewers=2, commands=1)
    assert {one["of"] for one in found["asked"].values()} == {viewers_cost.ASKED}
    assert all(one["slowest_s"] > 0 for one in found["commands"].values())


def test_the_cost_of_viewers_to_the_event_loop():
    found = viewers_cost.callbacks(5.0, viewers=2, warm_s=1.0)
    assert found.keys() == {"nobody watches", "watched"}
    assert all(one["longest_s"] > 0 and 0 < one["loop_busy"] < 1 for one in found.values())
    assert any("RequestHandler" in name for name in found["watched"]["worst"])  # of aiohttp


def test_convergence(tmp_path):
    bench("convergence", "--quick", "--worlds", "1", directory=tmp_path)
    made = records("convergence", tmp_path)
    assert {record["workers"] for record in made} == {"plain loop", "1"}
    # digits, one epoch: far better than to guess among ten.
    assert all(record["metrics"][0]["accuracy"] > 0.3 for record in made)


def test_report(tmp_path):
    document = tmp_path / "benchmarks.md"
    document.write_text((ROOT / "docs" / "benchmarks.md").read_text())
    bench("report", "--document", str(document), directory=tmp_path)
    assert "Not measured yet" in document.read_text()


def test_a_mistake_is_one_sentence_and_a_remedy():
    done = subprocess.run(
        [sys.executable, "-m", "scripts.benchrun", "train", "--links", "string"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "error: no link string\ntry: one of loopback, 1gbit, 100mbit\n"
