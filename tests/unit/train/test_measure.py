"""Steps of a small job without a ring: what is measured of them, and what the process answers."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest
import torch

import dtd.train.warm_up.measure as measure_module
from dtd.job import load_job, to_mapping
from dtd.strategy.choice import CODECS, STRATEGY_RISKS
from dtd.strategy.wire_memory import bucket_memory
from dtd.train.coding import measure_coding
from dtd.train.warm_up.measure import main, measure
from tests.unit.train.small_job import spec

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(measure_module, "LEAST_STEPS", 1)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def plain():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure_module, "LEAST_STEPS", 1)
        return measured(worlds=(1, 4))


def test_memory_is_counted_part_by_part(plain):
    memory = plain["memory"]
    assert memory["parameters"] == memory["snapshot"] - memory["optimizer"]
    assert memory["optimizer"] >= 2 * memory["parameters"]  # two moments of AdamW
    assert memory["gradients"] > memory["parameters"]  # in their buckets, and before they are
    assert 0 < memory["buckets"] < memory["parameters"]  # scalars
    assert memory["activations"] > 0
    assert memory["runtime"] > 0


def test_gradients_are_coded_in_their_own_type_and_rounded_to_narrow_ones():
    sizes = [50_000, 10]
    torch.manual_seed(0)
    coding = measure_coding([bucket_memory(torch.randn(size)) for size in sizes])
    assert coding["dtype"] == "float32"
    assert set(coding["coding"]) == {"float32", "bfloat16", "float16"}
    shares = {name: one["share"] for name, one in coding["coding"].items()}
    assert 0.75 < shares["float32"] < 0.9  # the exponents are a quarter
    assert 0.5 < shares["bfloat16"] < 0.8
    for one in coding["coding"].values():
        assert one["encode_bytes_per_s"] > 0
        assert one["decode_bytes_per_s"] > 0


@pytest.mark.parametrize(
    "flat", [torch.zeros(100), torch.zeros(10_000, dtype=torch.int32), torch.zeros(0)]
)
def test_what_is_short_or_has_no_exponents_is_not_coded(flat):
    assert measure_coding([bucket_memory(flat)]) == {"dtype": "", "coding": {}}


def test_random_bytes_get_no_shorter():
    noise = torch.randint(-(2**31), 2**31, (50_000,), generator=torch.Generator().manual_seed(0))
    floats = noise.to(torch.int32).view(torch.float32)
    assert "float32" not in measure_coding([bucket_memory(floats)])["coding"]


def test_a_job_measures_the_coding_of_its_own_gradients(plain):
    assert plain["dtype"] == "float32"
    assert 0.5 < plain["coding"]["float32"]["share"] < 1.0


def measured(*overrides, worlds=(2,)):
    return measure(spec(*overrides), device="cpu", threads=1, worlds=list(worlds), limit_s=0.0)


def test_steps_are_timed_without_a_codec_and_memory_is_that_with_it(plain):
    narrow = measured("strategy.codec=bfloat16")
    assert narrow["buckets"] == plain["buckets"]
    *whole, _tail = plain["buckets"]
    assert narrow["memory"]["buckets"] == plain["memory"]["buckets"] + sum(whole) // 2


def test_every_strategy_and_codec_is_listed_with_what_travels():
    figures = measured("job.steps=200", worlds=(1, 4))
    listed = {(one["strategy"], one["codec"]): one for one in figures["candidates"]}
    assert {codec for strategy, codec in listed if strategy == "replicated"} == set(CODECS)
    assert {strategy for strategy, _ in listed} == set(STRATEGY_RISKS)
    assert set(figures["codecs"]) == set(CODECS) - {"none"}
    assert figures["pass_s_per_byte"] > 0
    *sizes, _tail = figures["buckets"]
    halves = [[bucket, size // 2, False, True] for bucket, size in enumerate(sizes)]
    narrow = figures["codecs"]["bfloat16"]
    assert [wire[:3] for wire in narrow["wires"]] == [half[:3] for half in halves]
    assert narrow["dtype"] == "bfloat16"
    assert all(gathers for _, _, gathers, _ in figures["codecs"]["top_k"]["wires"])
    assert listed["replicated", "int8"]["risk"]
    assert listed["local_sgd", "none"]["every_steps"] > 1
    assert listed["streaming_diloco", "none"]["overlaps"]


def test_a_step_is_measured_with_all_updates_that_it_may_make(monkeypatch):
    """In every other step of the example there is one update, in the others there are two.

    Buckets of several updates wait for one another, so no strategies are compared.
    """
    monkeypatch.chdir(ROOT / "docs" / "examples")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    asked = to_mapping(load_job(Path("gan.toml")))
    answer = measure(asked, device="cpu", threads=1, worlds=[1, 2], limit_s=0.0)
    assert len(answer["buckets"]) == len(answer["worlds"]["2"]["ready_s"]) == 4
    assert "candidates" not in answer


# --- the process -----------------------------------------------------------------------------


def answer_of_main(monkeypatch, asked):
    """The output of `main` on the descriptor of stdout."""
    reader, writer = os.pipe()
    kept = os.dup(1)
    os.dup2(writer, 1)
    os.close(writer)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(asked)))
    monkeypatch.setattr(measure_module.signal, "alarm", lambda _seconds: 0)
    try:
        assert main() == 0
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    with os.fdopen(reader) as out:
        return json.loads(out.read())


def asked(**changed):
    values = {"spec": spec(), "device": "cpu", "threads": 1, "worlds": [1], "limit_s": 0.0}
    return values | {"place": ""} | changed


def test_the_process_answers_with_figures_only(monkeypatch):
    answer = answer_of_main(monkeypatch, asked())
    assert set(answer["worlds"]) == {"1"}
    assert "candidates" not in answer


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"spec": {}}, "is required"),
        ({"spec": spec('job.task="no_such_module:Task"')}, "no_such_module"),
        ({"device": "nowhere"}, "nowhere"),
    ],
)
def test_the_process_answers_with_what_went_wrong(monkeypatch, changed, words):
    assert words in answer_of_main(monkeypatch, asked(**changed))["error"]
