"""Strategies and codecs compared: which one is recommended, and what is said of the others."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from dtd.doctor.strategies import SAME_NUMBERS, Choice, check_choice, choices_of, forecasts
from dtd.job import parse_job

JOB = '[job]\nname = "a"\ntask = "digits"\nsteps = 3\nglobal_batch_size = 8\n'
WAYS = (("a", "b"), ("b", "a"))
MB = 10**6


def spec(*overrides):
    return parse_job(JOB, source="test", overrides=overrides)


def links(bytes_per_s=1e7):
    return [
        {"from": a, "to": b, "rtt_s": 0.0, "bytes_per_s": bytes_per_s}
        for a, b in WAYS
    ]  # fmt: skip


def candidate(codec, *, strategy="replicated", risk="", reason="", every_steps=1, overlaps=False):
    return {
        "strategy": strategy,
        "codec": codec,
        "every_steps": every_steps,
        "overlaps": overlaps,
        "risk": risk,
        "reason": reason,
    }


def codec(size_bytes, *, took_s=0.0):
    """An estimate for one bucket of 10 MB that a codec reduces to so many bytes; 0.1 s a pass."""
    return {"passes": 10 * took_s, "wires": [[0, size_bytes, False, False]]}


def step(candidates=(), codecs=None, **more):
    """0.1 s of backward, then 10 MB: 1 s at 10 MB a second."""
    world = {"data_s": 0.0, "compute_s": 0.1, "ready_s": [0.1, 0.1], "optimizer_s": 0.0}
    return {
        "buckets": [10 * MB, 0],
        "rows": 8,
        "worlds": {"1": world, "2": world},
        "candidates": list(candidates),
        "codecs": codecs or {},
        "pass_s_per_byte": 1e-8,
    } | more


def both(*candidates, **codecs):
    one = step(candidates, codecs)
    return {"a": one, "b": one}


def by_codec(listed):
    return {(one.strategy, one.codec): one for one in listed}


def recommended(steps, job=None):
    job = job or spec()
    return list(check_choice(choices_of(steps, links(), spec=job)))


def test_each_choice_has_its_step_and_what_it_risks_and_the_fastest_comes_first():
    steps = both(
        candidate("none"),
        candidate("half", risk="rounds"),
        candidate("slow", risk="rounds"),
        half=codec(5 * MB),
        slow=codec(1 * MB, took_s=2.0),
    )
    half, none, slow = choices_of(steps, links(), spec=spec())
    assert (half.codec, half.step_s, half.bytes_per_step) == ("half", pytest.approx(0.6), 5 * MB)
    assert half.speedup == pytest.approx(1.1 / 0.6)
    assert (half.risk, half.lossless, half.own) == ("rounds", False, False)
    assert (none.codec, none.step_s, none.own) == ("none", pytest.approx(1.1), True)
    assert (none.risk, none.lossless) == ("same numbers", True)
    assert (slow.codec, slow.step_s) == ("slow", pytest.approx(2.2))


def test_a_codec_takes_its_passes_over_memory_on_the_slowest_worker():
    steps = both(candidate("none"), candidate("half", risk="r"), half=codec(5 * MB, took_s=0.1))
    steps["b"] = {**steps["b"], "pass_s_per_byte": 1e-7}
    listed = by_codec(choices_of(steps, links(), spec=spec()))
    assert listed["replicated", "half"].step_s == pytest.approx(0.1 + 0.5 + 1.0)


def test_stages_share_what_encoding_takes_and_a_codec_s_own_addition_costs_its_passes():
    staged = {"passes": 40, "wires": [[0, MB, False, False], [0, MB, False, False]]}
    gathered = {"passes": 0, "wires": [[0, MB, True, False]]}
    added = {"passes": 20, "wires": [[0, MB, False, True]]}
    names = ("staged", "gathered", "added")
    steps = both(
        *(candidate(name, risk="r") for name in names),
        staged=staged,
        gathered=gathered,
        added=added,
    )
    step_s = {one.codec: one.step_s for one in choices_of(steps, links(), spec=spec())}
    assert step_s["staged"] == pytest.approx(0.1 + 1 + 0.1 + 1 + 0.1 + 2)
    assert step_s["gathered"] == pytest.approx(0.1 + 0.1)
    # 1 s to encode, then a segment of half the bucket: added in 1 s, passed on in 0.05 s.
    assert step_s["added"] == pytest.approx(0.1 + 1 + 1 + 0.05 + 1)


def test_what_does_not_fit_is_listed_with_the_reason_and_never_recommended():
    why = "does not fit: no matrix"
    steps = both(candidate("none"), candidate("rank", reason=why))
    listed = choices_of(steps, links(), spec=spec())
    assert (listed[-1].codec, listed[-1].step_s, listed[-1].risk) == ("rank", None, why)
    assert not listed[-1].lossless
    assert recommended(steps) == []


def test_a_lossy_choice_is_for_a_trial():
    steps = both(candidate("none"), candidate("half", risk="rounds"), half=codec(5 * MB))
    [found] = recommended(steps)
    assert (found.check, found.state) == ("strategy", "ok")
    assert "600 ms instead of 1.10 s (1.83 times as fast): rounds" in found.message
    assert found.remedy == (
        "compare the loss of short runs first; under [strategy] write"
        ' name = "replicated" and codec = "half"'
    )


def test_what_keeps_all_numbers_goes_before_what_is_faster():
    job = spec("strategy.codec=bfloat16")
    steps = both(
        candidate("none"),
        candidate("bfloat16", risk="rounds"),
        candidate("tiny", risk="rounds more"),
        bfloat16=codec(5 * MB, took_s=2.0),
        tiny=codec(MB),
    )
    [found] = recommended(steps, job)
    assert "codec none" in found.message
    assert found.message.endswith("same numbers")
    assert found.remedy.startswith("under [strategy]")


@pytest.mark.parametrize(
    ("risk", "speedup", "said"),
    [("", 1.04, 0), ("", 1.06, 1), ("r", 1.06, 0), ("r", 1.24, 0), ("r", 1.26, 1)],
)
def test_what_changes_the_numbers_has_to_be_worth_its_risk(risk, speedup, said):
    own = Choice(
        strategy="replicated",
        codec="none",
        every_steps=1,
        own=True,
        bytes_per_step=100,
        step_s=1.0,
        speedup=1.0,
        risk=SAME_NUMBERS,
        lossless=True,
    )
    other = replace(
        own, codec="c", own=False, step_s=1 / speedup, speedup=speedup, risk=risk, lossless=not risk
    )
    found = list(check_choice([other, own]))
    assert len(found) == said
    assert all(risk in one.message for one in found)


def test_local_steps_exchange_seldom():
    steps = both(candidate("none"), candidate("none", strategy="local", risk="r", every_steps=10))
    local = by_codec(choices_of(steps, links(), spec=spec()))["local", "none"]
    assert local.step_s == pytest.approx(0.1 + 0.1)
    assert local.bytes_per_step == MB
    late = candidate("none", strategy="late", risk="r", every_steps=10, overlaps=True)
    hidden = by_codec(choices_of(both(candidate("none"), late), links(), spec=spec()))
    assert hidden["late", "none"].step_s == pytest.approx(0.1)


def test_a_job_s_own_codec_is_in_its_forecast():
    one = step(
        [candidate("none"), candidate("bfloat16", risk="r")],
        {"bfloat16": codec(5 * MB, took_s=1.0)},
    )
    steps, job = {"a": one, "b": one}, spec("strategy.codec=bfloat16")
    alone, two = forecasts(steps, links(), most=2, spec=job)
    assert alone.step_s == pytest.approx(0.1)
    assert two.step_s == pytest.approx(0.1 + 0.5 + 0.5 + 0.5)
    listed = by_codec(choices_of(steps, links(), spec=job))
    assert listed["replicated", "bfloat16"].step_s == pytest.approx(two.step_s)
    assert listed["replicated", "none"].step_s == pytest.approx(1.1)


@pytest.mark.parametrize("known", [[], links(None)])
def test_alone_or_without_a_link_there_is_nothing_to_compare(known):
    steps = both(candidate("none"))
    assert choices_of(steps, known, spec=spec()) == []
    assert choices_of({"a": steps["a"]}, links(), spec=spec()) == []


# --- a state that is divided ---------------------------------------------------------------------


def sharded(stage, mirrors=0):
    return candidate("none", strategy="sharded") | {"stage": stage, "mirrors": mirrors}


@pytest.mark.parametrize(
    ("stage", "mirrors", "sent", "step_s"),
    [
        # 10 MB between two ranks at 10 MB/s: each half of the sum takes 0.5 s.  Gradients end at
        # 0.1 + 0.5 s; of the parameters, the only bucket is waited for.
        (1, 0, 10 * MB, 1.1),
        (1, 1, 10 * MB, 1.1),  # the mirror's hop is one that the parameters skip
        (2, 0, 10 * MB, 1.1),
        (3, 0, 15 * MB, 1.6),  # parameters are gathered for backward, too
    ],
)
def test_a_divided_state_sends_what_a_sum_sends_in_two_halves(stage, mirrors, sent, step_s):
    steps = both(candidate("none"), sharded(stage, mirrors))
    replicated, other = sorted(choices_of(steps, links(), spec=spec()), key=lambda c: c.strategy)
    assert (other.strategy, other.bytes_per_step) == ("sharded", sent)
    assert other.step_s == pytest.approx(step_s)
    assert replicated.step_s == pytest.approx(1.1)
    assert other.for_memory
    assert not replicated.for_memory


def test_parameters_hide_behind_loading_and_forward_but_for_the_first_bucket():
    """Two buckets of 5 MB, gathered in 0.25 s each; 0.4 s pass until the first one is needed."""
    world = {"data_s": 0.1, "compute_s": 0.9, "ready_s": [0.3, 0.9, 0.9], "optimizer_s": 0.0}
    each = step([candidate("none"), sharded(1)], buckets=[5 * MB, 5 * MB, 0])
    each["worlds"] = {"1": world, "2": world}
    listed = choices_of({"a": each, "b": each}, links(), spec=spec())
    step_s = {one.strategy: one.step_s for one in listed}
    assert step_s["replicated"] == pytest.approx(0.1 + 0.9 + 0.5)
    assert step_s["sharded"] == pytest.approx(0.1 + 0.9 + 0.25 + 0.25)


def test_memory_is_saved_and_no_time_so_it_is_never_recommended_for_speed():
    """Not even if the forecast makes it faster."""
    steps = both(candidate("none"), sharded(1))
    listed = [
        dataclasses.replace(one, speedup=2.0 if one.for_memory else 1.0)
        for one in choices_of(steps, links(), spec=spec())
    ]
    assert list(check_choice(listed)) == []
    divided = [dataclasses.replace(one, own=one.for_memory, speedup=2.0) for one in listed]
    others = [dataclasses.replace(one, speedup=1.0 if one.own else 2.0) for one in divided]
    assert list(check_choice(others)) == [], "the others may not fit"
    faster = [dataclasses.replace(one, for_memory=False) for one in listed]
    assert [one.check for one in check_choice(faster)] == ["strategy"]


def test_a_forecast_for_every_world_that_links_reach():
    worlds = {str(size): step()["worlds"]["1"] for size in (1, 2, 3)}
    steps = dict.fromkeys("abc", step(worlds=worlds))
    ways = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "a")]
    known = [{"from": a, "to": b, "rtt_s": 0.0, "bytes_per_s": 1e8} for a, b in ways]
    made = forecasts(steps, known, most=3, spec=spec())
    assert [one.world_size for one in made] == [1, 2, 3]
    assert made[1].step_s == pytest.approx(0.2)
    assert [one.world_size for one in forecasts(steps, known, most=2, spec=spec())] == [1, 2]
    assert [one.world_size for one in forecasts(steps, known[:2], most=3, spec=spec())] == [1, 2]
    assert [one.world_size for one in forecasts(steps, [], most=3, spec=spec())] == [1]
    assert forecasts({}, [], most=0, spec=spec()) == []
