"""Memory of a job: what there is, what a state will take, and peaks that are measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import dtd.train.memory as footprint
from dtd.doctor.memory import TRAINING_BYTES, Room
from dtd.errors import TaskError
from dtd.train.measure import measure
from dtd.train.memory import activation_peak, available_memory, optimizer_bytes
from tests.unit.train.small_job import spec

CPU = torch.device("cpu")


def test_the_peak_on_a_cpu_is_what_is_saved_for_backward_at_once():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)))
    with activation_peak(model, CPU) as peak:
        for rows in (8, 64, 16):
            model(torch.zeros(rows, 4)).sum().backward()
    # the input and the outputs of all three tanh, of the largest batch; weights are not counted
    assert peak == [4 * 64 * 4 * 4]


@pytest.fixture
def kernel(tmp_path: Path):
    """Writes files of /proc and /sys."""

    def write(**files: str) -> Path:
        written = {"proc/meminfo": "MemTotal: 999 kB\nMemAvailable: 500 kB\n"}
        written["proc/self/cgroup"] = "0::/\n"
        written |= {name.replace("__", "/"): text for name, text in files.items()}
        for name, text in written.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def group(
    directory: str, limit: str, used: int, reclaimable: int, kind: str = "inactive_file"
) -> dict[str, str]:
    return {
        f"{directory}/memory.max": limit,
        f"{directory}/memory.current": f"{used}\n",
        f"{directory}/memory.stat": f"anon 1\n{kind} {reclaimable}\n",
    }


def test_the_narrowest_group_counts_less_what_it_uses(kernel) -> None:
    root = kernel(
        **{"proc/self/cgroup": "0::/system.slice/dtd-worker.service\n"},
        **group("sys/fs/cgroup/system.slice", "300000\n", 100000, 0),
        **group("sys/fs/cgroup/system.slice/dtd-worker.service", "250000\n", 30000, 20000),
    )
    assert available_memory(CPU, root) == Room(
        bytes=200000, limit="memory limit of the control group /system.slice"
    )


def test_version_1_has_other_names(kernel) -> None:
    directory = "sys/fs/cgroup/memory/workers"
    root = kernel(
        **{
            "proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/workers\n0::/\n",
            f"{directory}/memory.limit_in_bytes": "1000\n",
            f"{directory}/memory.usage_in_bytes": "1200\n",
            f"{directory}/memory.stat": "inactive_file 90\ntotal_inactive_file 100\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1200\n",
            "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 100\n",
        }
    )
    assert available_memory(CPU, root) == Room(
        bytes=0, limit="memory limit of the control group /workers"
    )


def made(kind, **options) -> torch.optim.Optimizer:
    return kind([nn.Parameter(torch.ones(100))], **options)


@pytest.mark.parametrize(
    "optimizer",
    [
        made(torch.optim.SGD),
        made(torch.optim.SGD, momentum=0.9),
        made(torch.optim.Adam),
        made(torch.optim.Adam, amsgrad=True),
        made(torch.optim.AdamW),
        made(torch.optim.NAdam),
        made(torch.optim.RAdam),
        made(torch.optim.Adamax),
        made(torch.optim.RMSprop),
        made(torch.optim.RMSprop, momentum=0.9, centered=True),
        made(torch.optim.Adagrad),
        made(torch.optim.Adadelta),
        made(torch.optim.ASGD),
        made(torch.optim.Rprop),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_what_an_optimizer_will_keep_is_known_before_its_first_step(optimizer) -> None:
    said = optimizer_bytes(optimizer)
    (parameter,) = optimizer.param_groups[0]["params"]
    parameter.grad = torch.ones(100)
    optimizer.step()
    kept = optimizer.state[parameter].values()
    shaped = [value for value in kept if torch.is_tensor(value) and value.shape == (100,)]
    assert said == 400 * len(shaped)


def test_a_job_that_cannot_fit_is_refused_before_its_first_step(monkeypatch) -> None:
    room = Room(bytes=1000, limit="memory limit of the control group /dtd")
    monkeypatch.setattr(footprint, "available_memory", lambda _device: room)
    with pytest.raises(TaskError, match=r"the state needs .* in each worker \(parameters ") as told:
        measure(spec(), device="cpu", threads=1, worlds=[1], limit_s=0.0)
    message = told.value.message
    assert re.search(r"and 0 B are available, beside \d+\.\d [MG]iB of the process", message), (
        message
    )
    assert "of the process (memory limit of the control group /dtd)" in message
    assert told.value.remedy.startswith("use workers with more memory")


# --- a state that is divided, measured without a ring ---------------------------------------------


SHARDED = ("strategy.name='sharded'", "strategy.mirrors=0")


def test_a_divided_state_takes_its_share_and_a_step_has_the_buckets_of_any():
    figures = measure(spec(*SHARDED), device="cpu", threads=1, worlds=[1, 4], limit_s=0.0)
    whole = measure(spec(), device="cpu", threads=1, worlds=[1, 4], limit_s=0.0)
    assert figures["buckets"] == whole["buckets"]
    assert all(len(one["ready_s"]) == len(whole["buckets"]) for one in figures["worlds"].values())
    assert figures["state"] == whole["state"]
    moments = whole["state"]["optimizer_bytes"]
    assert figures["memory"]["optimizer"] == pytest.approx(moments / 4, rel=0.05)
    assert figures["memory"]["parameters"] == whole["memory"]["parameters"]
    said = {(one["strategy"], one["codec"]): one for one in figures["candidates"]}
    assert (said["sharded", "none"]["stage"], said["sharded", "none"]["mirrors"]) == (1, 0)
    assert "stage" not in said["replicated", "none"]


def test_a_divided_state_is_measured_in_worlds_that_the_job_allows(monkeypatch):
    """Three workers: 8 + 8 / 3 bytes a parameter fit, and 16 would not."""
    least = measure(spec(), device="cpu", threads=1, worlds=[1], limit_s=0.0)["state"]
    left = least["parameter_bytes"] + least["optimizer_bytes"] // 3 + 1 + TRAINING_BYTES
    left += least["gradient_bytes"]
    room = Room(bytes=left, limit="here")
    monkeypatch.setattr(footprint, "available_memory", lambda _device: room)
    few = spec(*SHARDED, "elastic.min_workers=3")
    figures = measure(few, device="cpu", threads=1, worlds=[1, 2, 4], limit_s=0.0)
    assert set(figures["worlds"]) == {"4"}
    fewer = spec(*SHARDED, "elastic.min_workers=2")
    with pytest.raises(TaskError, match="in each worker among 2 workers"):
        measure(fewer, device="cpu", threads=1, worlds=[1, 2], limit_s=0.0)
