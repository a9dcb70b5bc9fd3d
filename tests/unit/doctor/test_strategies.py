"""Strategies and codecs compared: which one is recommended, and what is said of the others."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dtd.doctor.strategies import (
    SAME_NUMBERS,
    Choice,
    check_choice,
    check_servers,
    choices_of,
    forecasts,
    star_of,
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


WORKERS = ("w0", "w1", "w2", "w3")


def with_servers(*overrides):
    return spec("strategy.name='sharded'", "strategy.owners='servers'", *overrides)


def served(servers, *overrides):
    found = check_servers(with_servers(*overrides), servers)
    return [(one.state, one.message) for one in found]


def test_a_job_with_parameter_servers_needs_some():
    assert list(check_servers(spec(), 0)) == []
    assert list(check_servers(spec("strategy.name='sharded'"), 0)) == []
    ((state, message),) = served(0)
    assert state == "fail"
    assert "no parameter server is connected" in message
    ((state, message),) = served(1)
    assert (state, message.split(":")[0]) == ("warn", "one server")
    assert served(2) == []
    assert "mirrors = 0" in served(2, "strategy.mirrors=0")[0][1]


def between(rates, rtt_s=0.0):
    """Links between all of these, each as fast as the slower of the two."""
    return [
        {"from": a, "to": b, "rtt_s": rtt_s, "bytes_per_s": min(rates[a], rates[b])}
        for a, b in itertools.permutations(rates, 2)
    ]


def star(servers, rates, *, mirrors=0, **changed):
    return star_of(WORKERS, servers, between(rates, **changed), mirrors=mirrors)


def test_fast_servers_leave_each_worker_its_own_link():
    rates = dict.fromkeys(WORKERS, 10.0 * MB) | {"s0": 100.0 * MB, "s1": 100.0 * MB}
    found = star(("s0", "s1"), rates, rtt_s=0.02)
    assert (found.up_bytes_per_s, found.down_bytes_per_s) == (10 * MB, 10 * MB)
    assert (found.servers, found.latency_s, found.narrowest) == (2, 0.01, "w0")


def test_one_server_is_known_to_be_as_fast_as_a_worker_and_no_faster():
    """One way is measured at a time, and ends at a worker."""
    found = star(("s0",), dict.fromkeys(WORKERS, 10.0 * MB) | {"s0": 100.0 * MB})
    assert (found.up_bytes_per_s, found.narrowest) == (2.5 * MB, "s0")


def test_a_server_carries_workers_over_servers_of_a_bucket():
    """Four workers at 100 MB/s: a server at 100 MB/s leaves each a quarter, two a half."""
    rates = dict.fromkeys((*WORKERS, "s0", "s1"), 100.0 * MB)
    alone = star(("s0",), rates)
    assert (alone.up_bytes_per_s, alone.down_bytes_per_s) == (25 * MB, 25 * MB)
    assert alone.narrowest == "s0"
    two = star(("s0", "s1"), rates)
    assert two.up_bytes_per_s == 50 * MB
    assert two.down_bytes_per_s == 40 * MB, "the servers get what they do not hold"
    mirrored = star(("s0", "s1"), rates, mirrors=1)
    assert mirrored.up_bytes_per_s == 40 * MB, "each sum goes to its mirror, too"
    assert mirrored.down_bytes_per_s == 50 * MB


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
