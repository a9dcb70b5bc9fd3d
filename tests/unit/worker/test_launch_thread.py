"""The devices that a launched script sees."""

from __future__ import annotations

import pytest

from dtd.worker.job.launch_thread import visible_devices


@pytest.mark.parametrize(
    ("device", "environment", "visible"),
    [
        ("cpu", {"CUDA_VISIBLE_DEVICES": "4,5"}, ""),
        ("cuda:1", {}, "1"),
        ("cuda:1", {"CUDA_VISIBLE_DEVICES": "4,GPU-7"}, "GPU-7"),
    ],
)
def test_a_script_sees_its_workers_device_alone(
    device: str, environment: dict[str, str], visible: str
) -> None:
    assert visible_devices(device, environment) == visible
