"""What `scripts/bench strategies` compares, and what it makes of the figures."""

from __future__ import annotations

import argparse

import pytest
import torch
from torch.futures import Future

from dtd.errors import UsageError
from dtd.job import from_mapping
from dtd.tasks.resnet import ResNet18
from scripts.benchrun import daemons, strategies, torch_side
from scripts.benchrun.strategy_table import strategies_tables
from scripts.benchrun.tasks import Gated
from scripts.benchrun.workloads import PACED_RESNET, job_of
from scripts.cluster.log_timeline import Line

OPTIONS = {"quick": False, "sides": None, "workloads": None, "links": None, "worlds": None}
RECORD = {
    "workload": "w",
    "what": "a model",
    "rows": 16,
    "link": "100mbit",
    "world": 2,
    "steps_s": {
        "float32": [4.0, 4.0],
        "PowerSGD rank 4": [0.4, 0.4],
        "DDP": [4.2, 4.2],
        "DDP bf16": [2.0, 2.0],
        "DDP PowerSGD": [0.5, 0.5],
        "apart": [0.3, 0.3],
    },
    "step_bytes": {
        "float32": 40 << 20,
        "PowerSGD rank 4": 1 << 20,
        "DDP": 40 << 20,
        "DDP bf16": 20 << 20,
        "DDP PowerSGD": 2 << 20,
    },
}


def cells(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("side", strategies.STRATEGIES)
def test_every_strategy_is_a_valid_job_and_a_block_is_whole_rounds(side):
    table = strategies.STRATEGIES[side]
    spec = job_of(PACED_RESNET, steps=100, gates="", holds=[], strategy=table)
    job = from_mapping(spec, source="test")
    assert (job.optimizer.momentum == 0.0) == (job.strategy.momentum > 0.0)
    steps = strategies.block_steps(table, 7)
    if job.strategy.local_from is None:
        assert steps == 7
    else:
        assert steps % job.strategy.round_steps == 0


def test_what_overlaps_the_next_round_is_counted_with_rounds_that_follow_another():
    table = strategies.STRATEGIES["streaming DiLoCo H = 32"]
    assert strategies.block_steps(table, 7) == 40  # one round of 8 to begin with, then all parts


def committed(at_s, steps):
    fields = {"steps": steps, "sent_bytes": 100 * steps, **dict.fromkeys(daemons.PARTS, 2.0)}
    return Line(daemon="worker-0", at_s=at_s, event="step_committed", fields=fields)


def test_a_single_round_counts_from_the_opening_of_its_gate():
    block = daemons._summed([committed(26.0, 32)], 10.0)
    assert block == daemons.Block(
        step_s=0.5, sent_bytes=100, parts_s=dict.fromkeys(daemons.PARTS, 0.0625)
    )


def test_of_several_commits_the_first_is_left_out():
    block = daemons._summed([committed(15.0, 4), committed(17.0, 4), committed(23.0, 4)], 10.0)
    assert (block.step_s, block.sent_bytes) == (1.0, 100)


def test_paced_shapes_are_those_of_the_network_and_all_get_gradients():
    task = Gated(model="paced", options={"compute_ms": 0.0, "width": 8})
    model = task.build_model()
    shapes = [weight.shape for weight in model.parameters()]
    assert shapes == [one.shape for one in ResNet18(classes=10, width=8).parameters()]
    rows = task.train_dataset().fetch([0, 1], epoch=0, seed=0)
    task.loss(model, rows).backward()
    assert all(weight.grad.abs().sum() > 0 for weight in model.parameters())


def test_buckets_of_the_hook_follow_one_another(monkeypatch):
    begun = {}

    def hook(state, bucket):
        begun[bucket] = Future()
        return begun[bucket]

    monkeypatch.setattr(torch_side, "powerSGD_hook", hook)
    in_turn = torch_side.in_turn()
    first, second = in_turn(None, "first"), in_turn(None, "second")
    assert begun.keys() == {"first"}
    begun["first"].set_result(torch.tensor(1.0))
    assert begun.keys() == {"first", "second"}
    assert first.value() == 1.0
    assert not second.done()
    begun["second"].set_result(torch.tensor(2.0))
    assert second.value() == 2.0


def test_the_table_compares_with_compute_alone_and_with_hooks():
    text = strategies_tables([RECORD])
    assert "compute alone takes 300 ms" in text
    assert cells(text, "PowerSGD rank 4") == [
        *("PowerSGD rank 4", "400 ms", "0 %", "100 ms", "0.50", "1.00 MiB", "40.0"),
        *("5.00", "1.25", "2"),
    ]
    assert cells(text, "DDP PowerSGD")[6:9] == ["20.0", "4.00", "-"]


def test_a_table_without_hooks_says_what_it_can():
    steps_s = {"float32": [4.0], "apart": [0.3]}
    record = {**RECORD, "steps_s": steps_s}
    assert cells(strategies_tables([record]), "float32") == [
        *("float32", "4 s", "0 %", "3.7 s", "-", "40.00 MiB", "1.0", "-", "-", "1"),
    ]


def test_cases_are_links_and_worlds_and_mistakes_are_told():
    options = argparse.Namespace(**OPTIONS, rounds=None)
    made = [(case.link, case.world) for case in strategies.cases(options)]
    assert made == [("100mbit", 2), ("100mbit", 4), ("1gbit", 2), ("1gbit", 4)]
    for wrong in ({"sides": ["none"]}, {"links": ["string"]}, {"workloads": ["w"]}):
        with pytest.raises(UsageError):
            list(strategies.cases(argparse.Namespace(**OPTIONS | wrong, rounds=None)))
