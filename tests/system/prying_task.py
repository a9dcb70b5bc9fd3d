"""A task whose code looks for what is not its business, and notes what came of it.

It is shipped to workers under a real systemd.  Of each attempt it notes what was tried, and what
was found or why it was refused.  The notes lie in the worker's runtime directory.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

NOTES: Final = "attempts.json"
LENT: Final = "memory of gradients seen"
WIDTH: Final = 300_000
"""So that the gradients are worth lending to a neighbour."""
_PTRACE_ATTACH: Final = 16
_PIDFD_OPEN: Final = 434
_PIDFD_GETFD: Final = 438


class Prying:
    """Learns nothing.

    Args:
        pids: of processes that are none of its business, by name.
        paths: that it must not be able to read.
        places: directories that it must not be able to write to.
        addresses: "HOST:PORT" that it must not be able to call.
    """

    def __init__(
        self,
        *,
        pids: dict[str, int],
        paths: list[str],
        places: list[str],
        addresses: list[str],
    ) -> None:
        self._found = dict(_attempts(pids, paths, places, addresses))
        self._lent = 0

    def build_model(self) -> nn.Module:
        """One wide layer."""
        return nn.Linear(1, WIDTH)

    def train_dataset(self) -> TensorDataset:
        """A few rows."""
        return TensorDataset(torch.ones(8, 1))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Nothing to learn; meanwhile the notes are written."""
        files = {line.split()[4] for line in _maps() if "memfd:dtd-buckets" in line}
        self._lent = max(self._lent, len(files))
        notes = {**self._found, LENT: str(self._lent)}
        Path(os.environ["RUNTIME_DIRECTORY"], NOTES).write_text(json.dumps(notes), "utf-8")
        loss: Tensor = model(batch[0]).square().mean()
        return loss


def _attempts(
    pids: dict[str, int], paths: list[str], places: list[str], addresses: list[str]
) -> Iterator[tuple[str, str]]:
    for path in paths:
        yield f"read {path}", _outcome(_read, Path(path))
    for place in places:
        yield f"write {place}", _outcome((Path(place) / "by-a-job").write_text, "x")
    for name, pid in pids.items():
        for file in ("environ", "mem", "maps", "root/etc/hostname", "cwd/x", "fd"):
            yield f"read {file} of {name}", _outcome(_read, Path(f"/proc/{pid}/{file}"))
        yield f"trace {name}", _outcome(_trace, pid)
        yield f"take a file of {name}", _outcome(_take_file, pid)
    for address in addresses:
        for way in (_call, _send):
            yield f"{way.__name__.strip('_')} {address}", _outcome(way, address)
    yield "submit", _outcome(_dtdctl, "token", "create", "--role", "operator")


def _maps() -> list[str]:
    return Path("/proc/self/maps").read_text("utf-8").splitlines()


def _outcome(act: Callable[..., object], *arguments: object) -> str:
    try:
        return f"got {str(act(*arguments))[:60]!r}"
    except OSError as error:
        return f"refused: {error.strerror or error}"


def _read(path: Path) -> object:
    if path.is_dir():
        return sorted(one.name for one in path.iterdir()) or _nothing()
    with path.open("rb") as file:
        if path.name == "mem":
            file.seek(0x1000)
        return file.read(16)


def _nothing() -> NoReturn:
    raise FileNotFoundError(2, "nothing is there")


def _system_call(*arguments: int) -> int:
    result = int(ctypes.CDLL(None, use_errno=True).syscall(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _trace(pid: int) -> object:
    library = ctypes.CDLL(None, use_errno=True)
    if library.ptrace(_PTRACE_ATTACH, pid, None, None) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "attached"


def _take_file(pid: int) -> object:
    return _system_call(_PIDFD_GETFD, _system_call(_PIDFD_OPEN, pid, 0), 0, 0)


def _call(address: str) -> object:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=3) as made:
        return made.getpeername()


def _send(address: str) -> object:
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        return made.sendto(b"x", (host, int(port)))


def _dtdctl(*arguments: str) -> object:
    command = [sys.executable, "-m", "dtd.ctl.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise OSError(f"{done.returncode}: {done.stderr.strip()}")
    return done.stdout
