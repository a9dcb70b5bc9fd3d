"""The memory that a process can still take, as the files of the kernel say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dtd.doctor.memory import Room
from dtd.train.memory.available import available_memory

CPU = torch.device("cpu")


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
