"""Strategies and codecs compared: which one is recommended, and what is said of the others."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dtd.doctor.strategies import (
    SAME_NUMBERS,
    Choice,
    check_choice,
    choices_of,
    forecasts,
    world_of,
)
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


def coder(share, *, encode=1e9, decode=1e9):
    return {"share": share, "encode_bytes_per_s": encode, "decode_bytes_per_s": decode}


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


def recommended(steps, job=None):
    job = job or spec()
    return list(check_choice(choices_of(world_of(steps, links(), spec=job))))


def test_each_choice_has_its_step_and_what_it_risks_and_the_fastest_comes_first():
    steps = both(
        candidate("none"),
        candidate("half", risk="rounds"),
        candidate("slow", risk="rounds"),
        half=codec(5 * MB),
        slow=codec(1 * MB, took_s=2.0),
    )
    half, none, slow = choices_of(world_of(steps, links(), spec=spec()))
    assert (half.codec, half.step_s, half.bytes_per_step) == ("half", pytest.approx(0.6), 5 * MB)
    assert half.speedup == pytest.approx(1.1 / 0.6)
    assert (half.risk, half.lossless, half.own) == ("rounds", False, False)
    assert (none.codec, none.step_s, none.own) == ("none", pytest.approx(1.1), True)
    assert (none.risk, none.lossless) == ("same numbers", True)
    assert (slow.codec, slow.step_s) == ("slow", pytest.approx(2.2))


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


def test_links_between_hosts_code_gradients_as_in_the_worst_worker():
    half = codec(5 * MB) | {"dtype": "bfloat16"}
    steps = both(candidate("none"), candidate("half", risk="rounds"), half=half)
    steps["a"] |= {"dtype": "float32", "coding": {"float32": coder(0.8), "bfloat16": coder(0.5)}}
    steps["b"] = steps["a"] | {"coding": {"float32": coder(0.9), "bfloat16": coder(0.5)}}
    narrow, plain = choices_of(world_of(steps, links(), spec=spec()))
    assert (plain.bytes_per_step, plain.coded) == (9 * MB, True)
    assert plain.step_s == pytest.approx(0.1 + 0.9)
    assert (narrow.bytes_per_step, narrow.coded) == (2.5 * MB, True)
    assert forecasts(steps, links(), most=2, spec=spec())[-1].step_s == plain.step_s
    one_host = [link | {"same_host": True} for link in links()]
    off, group = spec("sync.lossless=off"), spec("sync.transport=gloo")
    for known, job in ((one_host, spec()), (links(), off), (links(), group)):
        made = forecasts(steps, known, most=2, spec=job)[-1]
        assert (made.step_s, made.coded) == (pytest.approx(1.1), False)
    slow = {"float32": coder(0.5, decode=5e6)}
    steps["b"] = steps["a"] | {"coding": slow}
    assert forecasts(steps, links(), most=2, spec=spec())[-1].step_s == pytest.approx(1.1)
    on = forecasts(steps, one_host, most=2, spec=spec("sync.lossless=on"))[-1]
    assert on.step_s == pytest.approx(0.1 + 2.0)
    steps["b"] = steps["a"] | {"coding": {}}
    assert not forecasts(steps, links(), most=2, spec=spec())[-1].coded


# --- a state that is divided ---------------------------------------------------------------------


def sharded(stage, mirrors=0):
    return candidate("none", strategy="sharded") | {"stage": stage, "mirrors": mirrors}


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


def with_servers(*overrides):
    return spec("strategy.name='sharded'", "strategy.owners='servers'", *overrides)


def between(rates, rtt_s=0.0):
    """Links between all of these, each as fast as the slower of the two."""
    return [
        {"from": a, "to": b, "rtt_s": rtt_s, "bytes_per_s": min(rates[a], rates[b])}
        for a, b in itertools.permutations(rates, 2)
    ]


def test_copies_of_updates_are_waited_for_and_counted():
    """10 MB of gradients take 1 s, and half of 30 MB of state 1.5 s."""
    state = {"parameter_bytes": 10 * MB, "common_bytes": 0, "optimizer_bytes": 20 * MB}
    steps = {name: step([candidate("none")], state=state) for name in "ab"}
    job = spec("strategy.update='owner'")
    (made,) = [one for one in forecasts(steps, links(), most=2, spec=job) if one.world_size == 2]
    assert (made.step_s, made.sent_bytes) == (pytest.approx(2.6), 25 * MB)
    assert made.comm_s == pytest.approx(2.5)
    (choice,) = choices_of(world_of(steps, links(), spec=job))
    assert (choice.step_s, choice.bytes_per_step) == (made.step_s, made.sent_bytes)
    (alone,) = forecasts({"a": steps["a"]}, links(), most=1, spec=job)
    assert alone.sent_bytes == 0


def test_a_step_with_servers_takes_twice_the_whole_state_at_a_workers_link():
    """0.1 s of backward, then 10 MB up and down: 1 s each at 10 MB a second."""
    known = between({"a": 10.0 * MB, "b": 10.0 * MB, "s0": 100.0 * MB, "s1": 100.0 * MB})
    steps = both(candidate("none"), sharded(1))
    made = forecasts(steps, known, most=2, spec=with_servers(), servers=("s0", "s1"))
    assert [one.world_size for one in made] == [1, 2]
    for one in made:
        assert one.step_s == pytest.approx(0.1 + 1 + 1 - 0.1 + 0.1)
        assert one.comm_s == pytest.approx(2.0)
    ring = forecasts(
        steps, known, most=2, spec=spec("strategy.name='sharded'"), servers=("s0", "s1")
    )
    assert ring[-1].comm_s == pytest.approx(1.0), "without owners = servers they do not count"


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
