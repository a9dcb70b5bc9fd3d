"""Real codecs on a small model: what each would send, what is left out, and why."""

from __future__ import annotations

import json
from typing import get_args, get_type_hints

import pytest
import torch

import dtd.train.measure_codecs as probe_module
from dtd.doctor.travel import Coded, Exchange
from dtd.errors import TaskError
from dtd.job import StrategyTable
from dtd.job.strategy_table import LOCAL
from dtd.strategy.choice import CODECS, STRATEGY_RISKS
from dtd.strategy.codec.api import FlatLayout, TensorPlace
from dtd.train.measure import measure
from dtd.train.measure_codecs import measure_codecs, with_strategy
from tests.unit.train.small_job import spec

SIDE = 64
MATRIX = FlatLayout(
    dtype=torch.float32, tensors=(TensorPlace(start=0, stop=SIDE * SIDE, shape=(SIDE, SIDE)),)
)
VECTOR = FlatLayout(dtype=torch.float32, tensors=(TensorPlace(start=0, stop=SIDE, shape=(SIDE,)),))


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def measured(*overrides, layouts=(MATRIX, MATRIX, VECTOR), worlds=(2, 4)):
    return measure_codecs(
        spec(*overrides), layouts, device=torch.device("cpu"), worlds=worlds, step=5
    )


def reasons(answer):
    return {one["codec"]: one["reason"] for one in answer["candidates"]}


@pytest.fixture(scope="module")
def answer():
    return measured()


def test_every_codec_is_measured_and_says_what_it_risks(answer):
    said = {one["codec"]: one for one in answer["candidates"] if one["strategy"] == "replicated"}
    assert set(said) == set(CODECS)
    assert set(answer["codecs"]) == set(CODECS) - {"none"}
    for name, one in said.items():
        assert (one["reason"], bool(one["risk"])) == ("", name != "none")


def test_every_other_strategy_is_a_candidate_without_a_codec_and_with_the_jobs_own():
    answer = measured(
        "job.steps=40", "strategy.codec=bfloat16", "strategy.name=diloco", "strategy.inner_steps=3"
    )
    said = {(one["strategy"], one["codec"]): one for one in answer["candidates"]}
    names = set(get_args(get_type_hints(StrategyTable)["name"]))
    assert {name for name, _ in said} == names
    for name in names - {"replicated"}:
        assert {codec for one, codec in said if one == name} == {"none", "bfloat16"}
    for name in LOCAL:
        assert said[name, "none"]["risk"] == STRATEGY_RISKS[name] != ""
        assert said[name, "bfloat16"]["risk"].startswith(said[name, "none"]["risk"] + "; rounds")
    assert said["diloco", "none"]["every_steps"] == 3
    default = StrategyTable().inner_steps
    assert said["local_sgd", "none"]["every_steps"] == default
    assert said["streaming_diloco", "none"]["every_steps"] == default
    assert said["replicated", "none"]["every_steps"] == 1
    assert {name for (name, _), one in said.items() if one["overlaps"]} == {"streaming_diloco"}
    later = measured("job.steps=40", "strategy.name=local_sgd", "strategy.local_start_step=20")
    said = {one["strategy"]: one for one in later["candidates"]}
    assert said["local_sgd"]["every_steps"] == 1  # at step 5


def test_figures_make_a_plan_of_travel(answer):
    for figures in answer["codecs"].values():
        exchanges = [
            Exchange(bucket=bucket, gathers=gathers, size_bytes=size, encode_s=encode, add_s=add)
            for bucket, gathers, size, encode, add in zip(
                figures["buckets"],
                figures["gathers"],
                figures["worlds"]["4"],
                figures["encode_s"],
                figures["add_s"],
                strict=True,
            )
        ]
        coded = Coded(exchanges=tuple(exchanges), decode_s=tuple(figures["decode_s"]))
        assert {one.bucket for one in coded.exchanges} == {0, 1, 2}
        assert len(coded.decode_s) == 3
        assert all(one.encode_s >= 0 and one.add_s >= 0 for one in exchanges)
    json.dumps(answer)


def test_what_travels_is_what_the_codec_says(answer):
    codecs = answer["codecs"]
    whole, short = 4 * SIDE * SIDE, 4 * SIDE
    assert codecs["bfloat16"]["worlds"]["2"] == [whole // 2, whole // 2, short // 2]
    factor = 4 * SIDE * 4  # rank 4
    assert codecs["powersgd"]["buckets"] == [0, 1, 0, 1, 2]
    assert codecs["powersgd"]["worlds"]["4"] == [factor, factor, factor, factor, short]
    assert codecs["sign"]["gathers"] == [True, True, False]
    two, four = (codecs["sign"]["worlds"][size][0] for size in ("2", "4"))
    assert four == 2 * two  # every rank's own part


def test_keys_of_what_the_job_uses_stay_as_they_are():
    own = with_strategy(
        spec("strategy.codec=powersgd", "strategy.rank=7"), "replicated", "powersgd"
    )
    assert own["strategy"]["rank"] == 7
    other = with_strategy(spec("strategy.codec=powersgd", "strategy.rank=7"), "replicated", "none")
    assert other["strategy"] == {"name": "replicated", "codec": "none"}
    earlier = with_strategy(spec("sync.wire_dtype=bfloat16"), "replicated", "none")
    assert "wire_dtype" not in earlier["sync"]


def test_a_codec_that_finds_nothing_does_not_fit():
    answer = measured(layouts=(VECTOR,))
    assert reasons(answer)["powersgd"].startswith("does not fit: finds nothing")
    assert "powersgd" not in answer["codecs"]
    assert "int8" in answer["codecs"]


def test_a_job_that_is_shorter_than_a_round_is_told_so():
    said = {one["strategy"]: one for one in measured(layouts=(VECTOR,))["candidates"]}
    assert "inner_steps: must be at most the job's 6 steps" in said["local_sgd"]["reason"]


def test_a_job_that_a_codec_cannot_have_is_told_why():
    answer = measured("train.clip_norm=1.0", layouts=(MATRIX,))
    assert reasons(answer)["top_k"].startswith("does not fit: ")
    assert "clip_norm" in reasons(answer)["top_k"]
    assert "top_k" not in answer["codecs"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("LONGEST_S", -1.0, "it takes over"),
        ("ROOM", 1 << 50, "too little memory"),
        ("MOST_FIGURES", 1, "too many buckets"),
    ],
)
def test_what_would_take_too_much_is_left_out(monkeypatch, name, value, words):
    monkeypatch.setattr(probe_module, name, value)
    answer = measured(layouts=(MATRIX,))
    assert answer["codecs"] == {}
    assert words in reasons(answer)["int8"]


def test_an_answer_that_gets_too_long_is_about_the_largest_worlds(monkeypatch):
    monkeypatch.setattr(probe_module, "MOST_FIGURES", 7)
    answer = measured(layouts=(MATRIX,), worlds=(2, 3, 4))
    assert set(answer["codecs"]["int8"]["worlds"]) == {"3", "4"}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TaskError("an integer", remedy="none"), "does not fit: an integer"),
        (RuntimeError("no kernel"), "cannot be measured here: no kernel"),
    ],
)
def test_a_codec_that_fails_costs_only_its_own_figures(monkeypatch, error, words):
    class Failing:
        start_step, risk = 0, "fails"

        def coder(self, layout, index, device):
            raise error

    monkeypatch.setattr(probe_module, "CODECS", {"none": None, "int8": lambda _: Failing()})
    answer = measured(layouts=(MATRIX,))
    assert (reasons(answer)["int8"], answer["codecs"]) == (words, {})


# --- within a measurement of steps -----------------------------------------------------------


def step_of(*overrides, worlds=(1, 2)):
    return measure(spec(*overrides), device="cpu", threads=1, worlds=list(worlds), limit_s=0.0)


def test_a_job_without_a_codec_is_its_own_base():
    answer = step_of()
    assert "plain" not in answer
    *sizes, _ = answer["buckets"]
    assert [2 * size for size in answer["codecs"]["bfloat16"]["worlds"]["2"]] == sizes


def test_a_job_with_a_codec_is_measured_without_as_well():
    answer = step_of("strategy.codec=bfloat16")
    *sizes, _ = answer["buckets"]
    assert [size // 2 for size in answer["plain"]["buckets"][:-1]] == sizes
    assert set(answer["plain"]["worlds"]) == {"1", "2"}


def test_alone_no_codec_is_measured():
    assert "codecs" not in step_of(worlds=[1])
