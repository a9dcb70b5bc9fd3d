"""A process's available memory, according to the kernel's files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dtd.doctor.state_memory import Room
from dtd.train.memory import available_memory

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


def test_without_groups_the_host_is_the_limit(kernel) -> None:
    assert available_memory(CPU, kernel()) == Room(
        bytes=500 * 1024, limit="available memory of the host"
    )


def test_the_narrowest_group_counts_less_what_it_uses(kernel) -> None:
    root = kernel(
        **{"proc/self/cgroup": "0::/system.slice/dtd-worker.service\n"},
        **group("sys/fs/cgroup/system.slice", "300000\n", 100000, 0),
        **group("sys/fs/cgroup/system.slice/dtd-worker.service", "250000\n", 30000, 20000),
    )
    assert available_memory(CPU, root) == Room(
        bytes=200000, limit="memory limit of the control group /system.slice"
    )


def test_a_group_without_a_limit_or_out_of_sight_does_not_count(kernel) -> None:
    root = kernel(**{"proc/self/cgroup": "0::/a/b\n"}, **group("sys/fs/cgroup/a", "max\n", 100, 0))
    assert available_memory(CPU, root).bytes == 500 * 1024


@pytest.mark.parametrize("kind", ["active_file", "slab_reclaimable"])
def test_files_in_active_use_and_caches_of_the_kernel_take_no_room(kernel, kind) -> None:
    """A worker reads its data set again and again; it fills its group, and is given back."""
    root = kernel(
        **{"proc/self/cgroup": "0::/a\n"},
        **group("sys/fs/cgroup/a", "300000\n", 299000, 250000, kind),
    )
    assert available_memory(CPU, root).bytes == 251000


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
