"""What the benchmarks make of their figures: spreads, floors, records, tables, the document."""

from __future__ import annotations

import argparse
import json

import pytest

from dtd.errors import DtdError, UsageError
from scripts.benchrun import (
    allreduce,
    convergence,
    memory,
    quality,
    report,
    results,
    sharded,
    strategies,
    tables,
    train,
)

MACHINE = {
    "cpu": "a processor",
    "cores": 2,
    "memory_gib": 24,
    "kernel": "6.1",
    "python": "3.11.2",
    "torch": "2.15.0",
    "uvloop": "0.23.0",
    "dtd": "0.1.0",
    "congestion_control": "reno",
    "load_before": "0.1",
}


def reduced(side, time_s, *, cpu_s=1.0):
    return {
        "world": 4,
        "dtype": "float32",
        "bytes": 2**20,
        "side": side,
        "times_s": [time_s, 2 * time_s, time_s],
        "cpu_s": [cpu_s] * 3,
        "machine": MACHINE,
    }


REDUCED = [
    reduced("dtd", 0.001),
    reduced("dtd, sockets", 0.00125),
    reduced("gloo", 0.002),
    reduced("limit", 0.0005),
    reduced("limit, xxh3", 0.0008),
]
STEPPED = {
    "workload": "w",
    "what": "a model",
    "rows": 16,
    "link": "1gbit",
    "world": 2,
    "steps_s": {
        "dtd": [0.2] * 3,
        "ddp": [0.28, 0.3, 0.32],
        "ddp-heap": [0.25] * 3,
        "apart": [0.1] * 3,
        "single": [0.15] * 3,
    },
    "peak_bytes": {"dtd": 300 << 20, "ddp": 320 << 20, "apart": 280 << 20, "single": 290 << 20},
    "parts_s": {"compute_s": 0.1, "comm_s": 0.09, "exposed_s": 0.05},
    "ddp": {"bucket_mib": 25, "batched": True},
    "floor": {"floor_s": 0.16},
    "machine": MACHINE,
}
LEARNED = {
    "task": "digits",
    "workers": "2",
    "curve": [[1, 0.1, 2.3], [2, 0.2, 1.1]],
    "metrics": [{"loss": 0.5, "accuracy": 0.9}, {"loss": 0.6, "accuracy": 0.8}],
    "machine": MACHINE,
}

COMPARED = {
    "workload": "w",
    "what": "a model",
    "link": "100mbit",
    "world": 2,
    "steps_s": {"float32": [4.0], "DDP": [4.2], "apart": [0.3]},
    "step_bytes": {"float32": 40 << 20, "DDP": 40 << 20},
    "machine": MACHINE,
}

DIVIDED = {
    "workload": "w",
    "what": "a model",
    "link": "1gbit",
    "world": 2,
    "steps_s": {"dtd replicated": [4.0], "dtd stage 1": [4.1], "FSDP2": [4.2], "apart": [0.3]},
    "step_bytes": {"dtd replicated": 40 << 20, "dtd stage 1": 40 << 20},
    "peak_bytes": {"dtd replicated": 1 << 20, "dtd stage 1": 1 << 20, "FSDP2": 1 << 20},
    "machine": MACHINE,
}
HELD = {
    "stage": 1,
    "mirrors": 0,
    "world": 4,
    "parameters": 100,
    "formula_bytes": 1000,
    "state_bytes": [1000, 1010],
    "machine": MACHINE,
}


def cells(text, row):
    return [cell.strip() for cell in text.splitlines()[row].strip("|").split("|")]


def test_medians_and_ratios_are_of_rounds():
    assert results.spread([1.0, 2.0, 9.0]) == results.Spread(
        median=2.0, mad=1.0, lowest=1.0, highest=9.0
    )
    # A disturbance that both sides met in one round does not show.
    assert results.paired_ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]).median == 2.0


def test_turns_go_back_and_forth():
    assert [results.in_turn("ab", turn) for turn in range(3)] == [
        ["a", "b"],
        ["b", "a"],
        ["a", "b"],
    ]


def test_the_floor_of_buckets_that_wait_for_each_other():
    # The second is full before the first has arrived, the third only long after.
    assert results.shaped_floor_s([1.0, 2.0, 10.0], [3.0, 3.0, 1.0], 0.5) == 11.5
    assert results.shaped_floor_s([1.0, 2.0], [3.0, 3.0], 0.0) == 7.0


def test_bus_bandwidth_is_that_of_nccl_tests():
    assert allreduce.bus_factor(2) == 1.0
    assert allreduce.bus_factor(4) == 1.5
    assert tables.bus_bytes_per_s(REDUCED[0]) == 1.5 * 2**20 / 0.001


@pytest.mark.parametrize(("time_s", "count"), [(1.0, 1), (0.1, 3), (1e-12, 20_000)])
def test_iterations_fill_the_target(time_s, count):
    assert allreduce.iterations_for(time_s, 0.3) == count


def test_a_case_that_is_measured_again_replaces_its_record_and_no_other(tmp_path):
    key = ("side",)
    results.save("x", [{"side": "a", "v": 1.23456789}, {"side": "b", "v": 1}], key, tmp_path)
    results.save("x", [{"side": "b", "v": 2}], key, tmp_path)
    assert results.load("x", tmp_path) == [{"side": "a", "v": 1.2346}, {"side": "b", "v": 2}]


def test_figures_of_another_schema_are_refused(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"schema": 0, "records": []}))
    with pytest.raises(DtdError, match="schema 0"):
        results.load("x", tmp_path)


def test_the_table_of_all_reduce():
    row = cells(tables.allreduce_tables(REDUCED), 4)
    assert row[:3] == ["1 MiB", "1 ms", "1.05 GB/s"]
    assert row[3] == "1.57 GB/s"
    assert row[7] == "**2.00**"
    assert row[8] == "1.60"
    assert row[9] == "-"  # the ring between other addresses was not measured
    assert row[12] == "0.64"


def test_the_tables_of_training():
    text = tables.train_tables([STEPPED])
    steps = cells(text, 4)
    assert steps[2:5] == ["3", "80.0", "200 ms"]
    assert steps[8:10] == ["**1.50** (1.40 to 1.60)", "1.25 (1.25 to 1.25)"]
    assert steps[-1] == "0.75"
    where = cells(text, 8)
    assert where[5:7] == ["100 ms", "200 ms"]
    assert where[7:10] == ["25 MiB, batched", "160 ms", "1.25"]
    assert where[-2:] == ["20 MiB", "40 MiB"]


def test_a_world_of_one_has_no_floor_and_no_other_single_process():
    alone = {**STEPPED, "world": 1, "floor": {}}
    alone["steps_s"] = {side: times for side, times in alone["steps_s"].items() if side != "single"}
    assert cells(tables.train_tables([alone]), 4)[-1] == "0.50"
    assert cells(tables.train_tables([alone]), 8)[8:10] == ["-", "-"]


def test_bfloat16_has_a_table_where_it_was_measured():
    assert "bfloat16" not in tables.train_tables([STEPPED])
    narrow = {"dtd-bf16": [0.1] * 3, "ddp-bf16": [0.2] * 3}
    record = {
        **STEPPED,
        "steps_s": {**STEPPED["steps_s"], **narrow},
        "ddp-bf16": {"bucket_mib": 10, "batched": False},
    }
    text = tables.train_tables([STEPPED, record])
    last = cells(text, -1)
    assert "bf16_compress_hook" in text
    assert last == [
        *("1gbit", "2", "100 ms", "0 %", "200 ms", "0 %", "**2.00**", "2.00", "1.50", "10 MiB")
    ]


def test_the_table_of_convergence():
    row = cells(tables.convergence_table([LEARNED]), 2)
    assert row == [
        *("digits", "2", "2", "0.2", "1.1000"),
        "loss 0.5500 (0.5000 to 0.6000), accuracy 0.8500 (0.8000 to 0.9000)",
        "2",
    ]


def test_a_curve_is_thinned_to_its_means():
    points = [[step, step / 10, float(step)] for step in range(1, 301)]
    thin = convergence.thinned(points)
    assert len(thin) == 100
    assert thin[0] == [3, 0.3, 2.0]
    assert thin[-1][0] == 300


@pytest.mark.parametrize(("size", "text"), [(512, "512 B"), (4096, "4 KiB"), (2**28, "256 MiB")])
def test_sizes_in_words(size, text):
    assert tables.size_text(size) == text


def ended(strategy: str, seed: int, loss: float, step_bytes: float) -> dict:
    return {
        "machine": MACHINE,
        "task": "resnet",
        "strategy": strategy,
        "seed": seed,
        "steps": 160,
        "curve": [[1, 0.0, 2.3], [160, 0.0, loss]],
        "metrics": {"train_loss": loss, "loss": loss + 0.1, "accuracy": 0.5},
        "step_bytes": step_bytes,
    }


ENDED = [
    ended("sign", 0, 1.2, 1024.0),
    ended("float32", 0, 0.9, 65536.0),
    ended("float32", 1, 1.1, 65536.0),
    ended("sign", 1, 1.4, 1024.0),
]


def test_strategies_stand_against_float32():
    lines = tables.quality_tables(ENDED).splitlines()
    assert lines[0] == "#### resnet, 160 steps"
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[4:]]
    plain = ["float32", "64 KiB", "1.0", "1.0000", "1.1000", "0.1414", "**1.000**"]
    sign = ["sign", "1 KiB", "64.0", "1.3000", "1.4000", "0.1414", "**1.273**"]
    assert rows == [[*plain, "0.500", "0.000", "2"], [*sign, "0.500", "0.000", "2"]]


def test_where_float32_was_not_measured_nothing_is_compared():
    (row,) = tables.quality_tables([ENDED[0]]).splitlines()[4:]
    assert [cell.strip() for cell in row.split("|")[3:8:4]] == ["-", "-"]


def test_a_report_of_everything(tmp_path):
    pytest.importorskip("matplotlib")
    document = tmp_path / "benchmarks.md"
    document.write_text(report.DOCUMENT.read_text())
    for module, records in (
        (allreduce, REDUCED),
        (train, [STEPPED]),
        (convergence, [LEARNED]),
        (quality, ENDED),
        (strategies, [COMPARED]),
        (sharded, [DIVIDED]),
        (memory, [HELD]),
    ):
        results.save(module.KIND, records, module.KEY, tmp_path)
    report.run(argparse.Namespace(document=document, directory=tmp_path))
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {f"{kind}.svg" for kind in report.TABLES} <= first.keys()
    assert "a processor, 2 cores" in document.read_text()
    report.run(argparse.Namespace(document=document, directory=tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first


def test_what_was_not_measured_is_said(tmp_path):
    document = tmp_path / "benchmarks.md"
    document.write_text(report.DOCUMENT.read_text())
    report.run(argparse.Namespace(document=document, directory=tmp_path))
    assert document.read_text().count("Not measured yet") == len(report.TABLES)


def options(**given):
    usual = {"quick": False, "workloads": None, "links": None, "worlds": None, "rounds": None}
    return argparse.Namespace(**{**usual, "bf16": False, **given})


def test_links_take_namespaces_and_two_workers():
    everything = list(train.cases(options(), namespaces=True))
    paced = [case for case in everything if case.name == "paced-16"]
    assert [(case.link, case.world) for case in paced] == [("1gbit", n) for n in (2, 4, 8)]
    others = [case for case in everything if not case.name.startswith("paced")]
    assert len(others) == 4 * (3 + 2 + 2)
    assert {case.link for case in train.cases(options(), namespaces=False)} == {"loopback"}
    slow = [case for case in everything if case.link == "100mbit"]
    assert all(case.workload.block_steps == 3 for case in slow)


def test_bfloat16_is_measured_over_slow_links_or_where_it_is_asked_for():
    narrow = [case for case in train.cases(options(), namespaces=True) if case.bf16]
    assert {(case.link, case.world) for case in narrow} == {("100mbit", 2), ("100mbit", 4)}
    asked = [case for case in train.cases(options(bf16=True), namespaces=False) if case.bf16]
    assert {(case.link, case.world) for case in asked} == {("loopback", 2), ("loopback", 4)}
    assert asked[0].wires == {"": "", "-bf16": "bfloat16"}


@pytest.mark.parametrize("wrong", [{"workloads": ["x"]}, {"links": ["x"]}])
def test_unknown_names_are_refused(wrong):
    with pytest.raises(UsageError):
        list(train.cases(options(**wrong), namespaces=True))
