"""Checks of this host before the worker connects: that its device is there, and its sandbox holds.

If a worker found out in its first job, it would be excluded, and the job would seem at fault.
"""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from dtd.config import Sandbox
from dtd.errors import ConfigError

DRIVER_ANSWERS_WITHIN_S: Final = 60.0
CPU: Final = "cpu"
ROCM: Final = "rocm"
ATEN_CPU_CAPABILITY: Final = "ATEN_CPU_CAPABILITY"
"""torch reads it once, when it first chooses a kernel."""
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


def check_device(
    device: str, ask: Callable[[], Driver | None] | None = None, build: str | None = None
) -> None:
    """Refuse a device that this host does not have.

    Raises:
        ConfigError: no job could train on it.
    """
    if device == CPU:
        return
    build = torch_build() if build is None else build
    if build != ROCM:  # ROCm calls its devices cuda, too, and has another driver
        found = _fault(device, build, ask or ask_driver)
        if found is not None:
            why, remedy = found
            raise ConfigError(
                f"--device {device} is not available: {why}",
                remedy=f"{remedy}, or train on --device cpu",
            )


def _fault(device: str, build: str, ask: Callable[[], Driver | None]) -> tuple[str, str] | None:
    """Why torch cannot train on the GPU, and the remedy; None if it can."""
    if build == CPU:
        return (
            "the installed torch is built without CUDA",
            "install a build with CUDA; in a container, use an image built with TORCH=cu132",
        )
    driver = ask()
    if driver is None:
        return (
            "no CUDA driver is installed (libcuda.so.1)",
            "install it; give a container the host's (docker run --gpus, a pod's nvidia.com/gpu)",
        )
    number = int(device.partition(":")[2])
    if driver.code not in (0, _NO_DEVICE):
        why = f"the CUDA driver cannot be used (error {driver.code} of cuInit)"
    elif not driver.devices:
        why = "the CUDA driver sees no GPU"
    elif number >= driver.devices:
        last = f"cuda:{driver.devices - 1}"
        why = f"the last one is {last}" if driver.devices > 1 else f"the only one is {last}"
    else:
        return None
    return why, (
        "name a device that `nvidia-smi` lists, check that CUDA_VISIBLE_DEVICES does not hide it"
    )


def ask_driver() -> Driver | None:
    """The CUDA driver's answer; None if there is no driver.

    Raises:
        ConfigError: it does not answer.
    """
    command = [sys.executable, "-P", "-c", _ASK]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=DRIVER_ANSWERS_WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"the CUDA driver does not answer within {DRIVER_ANSWERS_WITHIN_S:g} s",
            remedy="check whether `nvidia-smi` does; the host may have to be restarted",
        ) from error
    numbers = re.findall(r"\d+", answer.stdout)
    return Driver(*map(int, numbers)) if answer.returncode == 0 and len(numbers) == 2 else None


def torch_build() -> str:
    """The platform of torch's build, without importing it: cpu, cuda, rocm; empty if unknown."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return ""
    try:
        text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    told = dict(re.findall(r"^(cuda|hip)\b.*=\s*(None|['\"])", text, re.MULTILINE))
    if told.get("hip", "None") != "None":
        return ROCM
    return CPU if told.get("cuda") == "None" else "cuda"


_CPUINFO: Final = Path("/proc/cpuinfo")
_NEEDED: Final = {
    "avx512": {"avx512vl", "avx512bw", "avx512dq", "fma"},
    "avx2": {"avx2", "fma"},
    "default": {"sse2"},
}
"""Flags of x86 processors for which torch chooses each of its sets of kernels, the best first."""


def best_instructions(device: str, environ: Mapping[str, str]) -> str:
    """The level of this host's processor, as ATEN_CPU_CAPABILITY names it.

    Returns:
        What that variable says, if it is set; empty for a GPU, and for processors of other kinds.
    """
    if device != CPU:
        return ""
    try:
        found = re.search(r"^flags\s*:(.*)$", _CPUINFO.read_text(), re.MULTILINE)
    except OSError:
        return ""
    flags = set(found[1].split()) if found else set()
    best = next((level for level, needed in _NEEDED.items() if needed <= flags), "")
    return environ.get(ATEN_CPU_CAPABILITY) or best


READ_ONLY: Final = ("/", "/etc", "/home", "/mnt", "/opt", "/root", "/run", "/srv", "/usr", "/var")
STRANGERS: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses for documentation, unused: packets to them go to the next router."""

_DISCARD: Final = 9


def check_sandbox(sandbox: Sandbox) -> None:
    """Check that jobs cannot do here what the setting promises that they cannot.

    Raises:
        ConfigError: they can, with all that was found.
    """
    holes = list(_holes()) if sandbox == "strict" else []
    if holes:
        raise ConfigError(
            f'sandbox = "strict", but from here {"; ".join(holes)}',
            remedy="run it as a system service with strict.conf (docs/operations.md, "
            '"A stricter sandbox")',
        )


def refuse_if_laxer(own: Sandbox, wanted: str) -> None:
    """Check that this worker may run a job's code.

    Raises:
        ConfigError: the job wants a strict sandbox, and the worker has none.
    """
    if wanted == "strict" != own:
        raise ConfigError(
            'the job requires sandbox = "strict", and this worker has no such sandbox',
            remedy='set it up on the worker (docs/operations.md, "A stricter sandbox"), or leave'
            " the key out of the job file",
        )


def _holes() -> Iterator[str]:
    """Describe what a job could do beyond its directory and its cluster."""
    writable = [place for place in READ_ONLY if _is_writable(place)]
    if writable:
        yield f"{', '.join(writable)} can be written to"
    reached = [host for family, host in STRANGERS if _can_send(family, host)]
    if reached:
        yield f"addresses outside the cluster, such as {', '.join(reached)}, can be reached"


def _is_writable(place: str) -> bool:
    """The file system is; permissions are another matter."""
    try:
        return not os.statvfs(place).f_flag & os.ST_RDONLY
    except OSError:  # it is hidden, or not there
        return False


def _can_send(family: int, host: str) -> bool:
    """A datagram gets out; systemd's filter and a host without a route refuse it at once."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as made:
            made.sendto(b"", (host, _DISCARD))
    except OSError:
        return False
    return True
