from __future__ import annotations

import math

from dtd.observe.series import (
    LINK_COLUMNS,
    STEP_COLUMNS,
    WORKER_COLUMNS,
    Kind,
    Track,
    at,
    evaluation_entry,
    link_entry,
    row_of_progress,
    step_entry,
    worker_entry,
)
from dtd.wire import messages as m


def progress(**changed):
    values = {
        "job": "digits-1", "generation": 2, "step": 7, "epoch": 1, "loss": 0.5,
        "learning_rate": 0.1, "grad_norm": 3.0, "rows": 64, "step_s": 0.5, "compute_s": 0.25,
        "comm_s": 0.125, "exposed_s": 0.0625, "skipped": False, "skipped_steps": 0,
    }  # fmt: skip
    return m.Progress(**(values | changed))


def beat(**changed):
    return m.Heartbeat(state="training", job="digits-1", **changed)


def named(entry):
    return dict(zip(entry.columns, entry.values, strict=True))


def test_a_step_has_all_its_figures():
    entry = step_entry("digits-1", row_of_progress(progress()), 1000.0)
    assert entry.track == Track("digits-1", Kind.STEPS)
    assert (entry.position, entry.generation, entry.columns) == (7, 2, STEP_COLUMNS)
    found = named(entry)
    assert (found["loss"], found["rows_per_s"], found["unix_s"]) == (0.5, 128.0, 1000.0)
    assert math.isnan(found["data_s"])


def test_a_step_without_a_measured_time_has_no_rate():
    found = named(step_entry("digits-1", row_of_progress(progress(step_s=0.0)), 1000.0))
    assert found["step_s"] == 0.0
    assert math.isnan(found["rows_per_s"])


def test_evaluations_have_the_names_of_the_task():
    entry = evaluation_entry(m.Evaluated(job="j", step=5, metrics={"loss": 1.0, "f1": 0.5}))
    assert named(entry) == {"eval/f1": 0.5, "eval/loss": 1.0}
    assert at(("eval/loss", "eval/new"), entry)[0] == 1.0
    assert math.isnan(at(("eval/loss", "eval/new"), entry)[1])


def test_a_worker_has_rates_since_its_heartbeat_before():
    before = beat(cpu_s=10.0, sent_bytes=100, received_bytes=5)
    entry = worker_entry("w", beat(cpu_s=14.0, sent_bytes=300, received_bytes=5), before, 2.0, 9.7)
    assert (entry.track.name, entry.position, entry.columns) == ("w", 9, WORKER_COLUMNS)
    found = named(entry)
    assert found["processor_cores"] == 2.0
    assert (found["sent_bytes_per_s"], found["received_bytes_per_s"]) == (100.0, 0.0)
    assert math.isnan(found["gpu_use"])
    assert math.isnan(found["gpu_memory_bytes"])


def test_a_worker_has_no_rates_at_first_nor_across_a_restart():
    now = beat(cpu_s=4.0, gpu_use=0.5, gpu_memory_bytes=7)
    for before, elapsed_s in ((None, 0.0), (beat(cpu_s=9.0), 2.0), (beat(cpu_s=1.0), 0.0)):
        found = named(worker_entry("w", now, before, elapsed_s, 9.0))
        assert math.isnan(found["processor_cores"])
        assert (found["gpu_use"], found["gpu_memory_bytes"]) == (0.5, 7.0)


def test_a_link_has_two_ends():
    entry = link_entry("a", "b", beat(rtt_s=0.5, link_bytes_per_s=8.0), 3.0)
    assert entry.track.name == "a>b"
    assert (entry.columns, entry.values) == (LINK_COLUMNS, (0.5, 8.0))
