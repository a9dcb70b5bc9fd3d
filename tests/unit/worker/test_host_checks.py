"""A host without the device or the sandbox that its worker promises is refused."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dtd.errors import ConfigError
from dtd.worker.process import host_checks
from dtd.worker.process.host_checks import (
    Driver,
    best_instructions,
    check_device,
    check_sandbox,
    refuse_if_laxer,
    torch_build,
)


@pytest.mark.parametrize(
    ("name", "driver"), [("cuda:0", Driver(0, 1)), ("cuda:7", Driver(0, 8)), ("cpu", None)]
)
def test_what_is_there_is_taken(name: str, driver: Driver | None) -> None:
    check_device(name, lambda: driver, "cuda")


@pytest.mark.parametrize(
    ("name", "driver", "why"),
    [
        ("cuda:0", None, "no CUDA driver is installed"),
        ("cuda:0", Driver(100, 0), "sees no GPU"),
        ("cuda:0", Driver(0, 0), "sees no GPU"),
        ("cuda:0", Driver(803, 0), "error 803 of cuInit"),
        ("cuda:7", Driver(0, 2), "the last one is cuda:1"),
        ("cuda:1", Driver(0, 1), "the only one is cuda:0"),
    ],
)
def test_what_is_not_there_is_refused(name: str, driver: Driver | None, why: str) -> None:
    with pytest.raises(ConfigError, match=f"--device {name} is not available: .*{why}") as caught:
        check_device(name, lambda: driver, "cuda")
    assert caught.value.exit_code == 78


def test_a_container_without_the_hosts_driver_is_told_how_to_get_it() -> None:
    with pytest.raises(ConfigError) as caught:
        check_device("cuda:0", lambda: None, "cuda")
    assert "docker run --gpus" in caught.value.remedy


@pytest.mark.parametrize(
    ("cuda", "hip", "build"),
    [("None", "None", "cpu"), ("'13.2'", "None", "cuda"), ("None", "'7.1'", "rocm")],
)
def test_a_torch_without_cuda_is_refused(cuda, hip, build, tmp_path, monkeypatch) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").touch()
    lines = f"cuda: Optional[str] = {cuda}\nhip: Optional[str] = {hip}\n"
    (torch / "version.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert torch_build() == build
    if build == "cpu":
        with pytest.raises(ConfigError, match="torch is built without CUDA"):
            check_device("cuda:0", lambda: Driver(0, 1))
    else:
        check_device("cuda:0", lambda: Driver(0, 1))


def test_the_worker_says_so_and_ends_without_importing_torch(tmp_path) -> None:
    """The number is one that no host has."""
    program = "import sys; from dtd.worker.main import main; code = main(sys.argv[1:])"
    program += "; assert 'torch' not in sys.modules; sys.exit(code)"
    command = [sys.executable, "-c", program, "--device", "cuda:999"]
    ended = subprocess.run(
        [*command, "--state-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 78, ended.stderr
    assert "--device cuda:999 is not available" in ended.stderr


# --- sandbox --------------------------------------------------------------------------------------


@pytest.fixture
def host(monkeypatch):
    """A host of which a test says what is writable and who can be reached."""
    made = SimpleNamespace(writable=set(), hidden=set(), reachable=set())

    def statvfs(place):
        if place in made.hidden:
            raise PermissionError(errno.EACCES, "hidden")
        return SimpleNamespace(f_flag=0 if place in made.writable else os.ST_RDONLY)

    class Socket:
        def __init__(self, family, kind):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_error):
            pass

        def sendto(self, octets, address):
            if address[0] not in made.reachable:
                raise PermissionError(errno.EPERM, "filtered")

    monkeypatch.setattr(host_checks.os, "statvfs", statvfs)
    monkeypatch.setattr(host_checks.socket, "socket", Socket)
    return made


def test_all_holes_are_named(host):
    host.writable, host.reachable = {"/", "/srv"}, {"192.0.2.1", "2001:db8::1"}
    with pytest.raises(ConfigError) as caught:
        check_sandbox("strict")
    assert (
        "/, /srv can be written to; addresses outside the cluster, such as 192.0.2.1, 2001"
        in caught.value.message
    )
    assert "strict.conf" in caught.value.remedy


def test_a_job_that_wants_more_than_a_worker_has_is_refused():
    with pytest.raises(ConfigError, match=r"sandbox = .strict.*no such sandbox"):
        refuse_if_laxer("normal", "strict")


def test_a_level_that_is_set_counts_and_a_gpu_has_none() -> None:
    assert best_instructions("cpu", {"ATEN_CPU_CAPABILITY": "default"}) == "default"
    assert best_instructions("cuda:0", {}) == ""


def test_the_level_is_the_one_that_torch_chooses() -> None:
    environ = {key: value for key, value in os.environ.items() if key != "ATEN_CPU_CAPABILITY"}
    ask = "import torch; print(torch.backends.cpu.get_cpu_capability().lower())"
    torch_has = subprocess.run(
        [sys.executable, "-c", ask], env=environ, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert best_instructions("cpu", environ) in (torch_has, "")
