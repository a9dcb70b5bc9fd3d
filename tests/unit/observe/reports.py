"""Reports of a worker, as the recorder of figures hears them."""

from __future__ import annotations

from dtd.wire import messages as m
from dtd.wire.step_rows import StepRow


def row(step, generation=1, **changed):
    times = dict.fromkeys(
        ("step_s", "data_s", "compute_s", "comm_s", "exposed_s", "optimizer_s"), 0.25
    )
    values = {
        "epoch": 0, "steps": 1, "rows": 64, "loss": 1.0, "learning_rate": 0.1,
        "gradient_norm": 2.0, "sent_bytes": 10, "skipped": 0,
    }  # fmt: skip
    return StepRow(**({"step": step, "generation": generation} | values | times | changed))


def progress(**changed):
    values = {
        "job": "digits-1", "generation": 2, "step": 7, "epoch": 1, "loss": 0.5,
        "learning_rate": 0.1, "grad_norm": 3.0, "rows": 64, "step_s": 0.5, "compute_s": 0.25,
        "comm_s": 0.125, "exposed_s": 0.0625, "skipped": False, "skipped_steps": 0,
    }  # fmt: skip
    return m.Progress(**(values | changed))
