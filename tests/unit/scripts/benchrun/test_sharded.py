"""What `scripts/bench sharded` and `scripts/bench memory` compare, and their tables."""

from __future__ import annotations

import argparse

import pytest
from torch import nn

from dtd.doctor.state_memory import REPLICATED, Division
from dtd.errors import UsageError
from dtd.job import from_mapping
from scripts.benchrun import memory, sharded, torch_sharded
from scripts.benchrun.sharded_table import sharded_tables, sides_of
from scripts.benchrun.workloads import WORKLOADS, Workload, job_of

OPTIONS = {"quick": False, "sides": None, "workloads": None, "worlds": None, "rounds": None}
RECORD = {
    "workload": "w",
    "what": "a model",
    "rows": 16,
    "link": "1gbit",
    "world": 2,
    "steps_s": {
        "dtd replicated": [0.4, 0.4],
        "dtd stage 1": [0.42, 0.42],
        "DDP + ZeRO": [0.63, 0.63],
        "FSDP2": [0.84, 0.84],
        "apart": [0.3, 0.3],
    },
    "step_bytes": {"dtd replicated": 40 << 20, "dtd stage 1": 40 << 20},
    "peak_bytes": dict.fromkeys(
        ("dtd replicated", "dtd stage 1", "DDP + ZeRO", "FSDP2", "apart"), 500 << 20
    ),
}
HELD = {
    "stage": 1,
    "mirrors": 1,
    "world": 4,
    "parameters": 1 << 20,
    "formula_bytes": 12 << 20,
    "state_bytes": [12 << 20, 13 << 20, 12 << 20, 12 << 20],
    "base_bytes": 300 << 20,
}


def cells(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_step_is_compared_with_replicated_training_and_with_torch():
    text = sharded_tables([RECORD])
    assert sides_of(RECORD) == ["dtd replicated", "dtd stage 1", "DDP + ZeRO", "FSDP2"]
    assert "compute alone takes 300 ms" in text
    assert cells(text, "dtd stage 1") == [
        *("dtd stage 1", "420 ms", "0 %", "120 ms", "40.00 MiB", "500 MiB"),
        *("1.05", "1.50", "2.00", "-", "2"),
    ]
    assert cells(text, "FSDP2")[4:10] == ["-", "500 MiB", "2.10", "0.75", "-", "-"]


def test_every_stage_is_a_valid_job_with_adam():
    ours = [f"dtd stage {n}" for n in (1, 2, 3)]
    assert list(sharded.stages()) == [sharded.REPLICATED, *ours, *sharded.SERVED]
    (case, *_) = sharded.cases(argparse.Namespace(**OPTIONS))
    for strategy in sharded.stages().values():
        spec = job_of(case.workload, steps=9, gates="", holds=[], strategy=strategy)
        job = from_mapping(spec, source="test")
        assert (job.optimizer.name, job.optimizer.momentum) == ("adamw", 0.0)


def test_cases_are_worlds_and_mistakes_are_told():
    made = list(sharded.cases(argparse.Namespace(**OPTIONS)))
    links = [(case.link, case.world) for case in made]
    assert links == [("1gbit", 2), ("1gbit", 4), ("100mbit", 4)]
    assert not set(made[0].sides) & sharded.SERVED.keys()
    assert set(made[-1].sides) > sharded.SERVED.keys()
    for wrong in ({"sides": ["none"]}, {"workloads": ["w"]}):
        with pytest.raises(UsageError):
            list(sharded.cases(argparse.Namespace(**OPTIONS | wrong)))


def test_a_layer_is_gathered_at_a_time():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), nn.Tanh(), nn.Linear(2, 2))
    assert list(torch_sharded._units(model)) == [model[0], model[2]]


def test_workloads_have_momentum_unless_they_name_an_optimizer():
    plain = from_mapping(job_of(WORKLOADS["mlp-16"], steps=1, gates="", holds=[]), source="test")
    assert (plain.optimizer.name, plain.optimizer.momentum) == ("sgd", 0.9)
    adam = Workload(what="", model="layers", rows=4, block_steps=1, optimizer={"name": "adam"})
    job = from_mapping(job_of(adam, steps=1, gates="", holds=[]), source="test")
    assert (job.optimizer.name, job.optimizer.momentum) == ("adam", 0.0)


def test_a_gate_is_not_reached_by_the_pass_before_training():
    holds = [
        job_of(WORKLOADS["mlp-16"], steps=9, gates="", holds=[0, 4], strategy=table)["task"][
            "holds"
        ]
        for table in sharded.stages().values()
    ]
    assert holds == [[0, 4], *[[1, 5]] * (len(holds) - 1)]


def rows_of(records):
    rows = memory.memory_table(records).splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_memory_is_said_in_bytes_a_parameter_beside_the_formula():
    alone = ["4", "sharded, stage 1", "1", "12 MiB", "0 %", "12.00", "12.00", "**0.750**", "0.750"]
    assert rows_of([HELD]) == [[*alone, "-"]]
    whole = {**HELD, "stage": 0, "state_bytes": [20 << 20] * 4}
    replicated, sharded_row = rows_of([HELD, whole])
    assert replicated[1:3] == ["replicated", "-"]
    assert replicated[-3:] == ["**1.250**", "0.750", "1.000"]
    assert sharded_row == [*alone, "0.600"]


def test_memory_is_measured_without_mirrors_and_with_one():
    made = list(memory.cases(argparse.Namespace(quick=False, worlds=None)))
    assert made[0].division == Division(stage=REPLICATED)
    assert made[0].strategy == {}
    assert [(one.division.stage, one.division.mirrors) for one in made[1:]] == [
        (stage, mirrors) for stage in (1, 2, 3) for mirrors in (0, 1)
    ]
    assert made[-1].strategy == {"name": "sharded", "stage": 3, "mirrors": 1}


def test_what_few_parameters_take_is_subtracted(monkeypatch):
    held = {memory.FEW_PARAMETERS: [100, 102], 1000: [16101, 16101]}
    monkeypatch.setattr(memory, "_held_bytes", lambda _case, parameters: held[parameters])
    record = memory.measure(memory.Case(division=Division(stage=0), world=2, parameters=1000))
    assert record["state_bytes"] == [16000, 16000]
    layers = memory.LAYERS
    assert record["parameters"] == layers * 1 * (1 + 1)  # layers of one number, each with a bias
    assert record["formula_bytes"] == 16 * record["parameters"]
