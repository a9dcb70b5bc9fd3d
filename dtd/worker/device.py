"""Checks that the worker's device is available, before the worker connects to the coordinator.

If the worker found out in its first job, it would be excluded, and the job would seem at fault.
torch is not imported for that: it takes seconds and hundreds of megabytes, which an idle worker
does not need.  The driver itself is asked instead, in a child process: initialising it here would
leave its threads and open files behind, and this process is to begin each job afresh.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from dtd.errors import ConfigError

PATIENCE_S: Final = 60.0
CPU: Final = "cpu"
_NO_DEVICE: Final = 100
"""CUDA_ERROR_NO_DEVICE; CUDA_VISIBLE_DEVICES counts."""

_ASK: Final = """
import ctypes
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
print(code, count.value)
"""


class Driver(NamedTuple):
    """Answer of the CUDA driver: its error code, 0 for none, and the number of its devices."""

    code: int
    devices: int


def check_device(device: str, ask: Callable[[], Driver | None] | None = None) -> None:
    """Refuse a device that this host does not have.

    Args:
        device: "cpu" or "cuda:N".
        ask: asks the driver; None if there is none.

    Raises:
        ConfigError: no job could train on it.
    """
    if device == CPU or _is_for_other_gpus():
        return
    driver = (ask or ask_driver)()
    number = int(device.partition(":")[2])
    if driver is None:
        why = "no CUDA driver is installed (libcuda.so.1)"
    elif driver.code not in (0, _NO_DEVICE):
        why = f"the CUDA driver cannot be used (error {driver.code} of cuInit)"
    elif not driver.devices:
        why = "the CUDA driver sees no GPU"
    elif number >= driver.devices:
        last = f"cuda:{driver.devices - 1}"
        why = f"the last one is {last}" if driver.devices > 1 else f"the only one is {last}"
    else:
        return
    raise ConfigError(
        f"--device {device} is not available: {why}",
        remedy="name a device that `nvidia-smi` lists, check that CUDA_VISIBLE_DEVICES does not "
        "hide it, or train on --device cpu",
    )


def ask_driver() -> Driver | None:
    """The CUDA driver's answer; None if there is no driver.

    Raises:
        ConfigError: it does not answer.
    """
    command = [sys.executable, "-P", "-c", _ASK]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"the CUDA driver does not answer within {PATIENCE_S:g} s",
            remedy="check whether `nvidia-smi` does; the host may have to be restarted",
        ) from error
    numbers = re.findall(r"\d+", answer.stdout)
    return Driver(*map(int, numbers)) if answer.returncode == 0 and len(numbers) == 2 else None


def _is_for_other_gpus() -> bool:
    """Whether torch was built for ROCm, which calls its devices cuda, too."""
    found = importlib.util.find_spec("torch")  # looks for it and does not import it
    if found is None or found.origin is None:
        return False
    try:
        text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"^hip\b.*=\s*['\"]", text, re.MULTILINE) is not None
