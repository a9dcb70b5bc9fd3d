"""A device that is not there is refused before the worker calls anybody."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dtd.errors import ConfigError
from dtd.worker import host_checks
from dtd.worker.host_checks import Driver, ask_driver, check_device


@pytest.mark.parametrize(
    ("name", "driver"), [("cuda:0", Driver(0, 1)), ("cuda:7", Driver(0, 8)), ("cpu", None)]
)
def test_what_is_there_is_taken(name: str, driver: Driver | None) -> None:
    check_device(name, lambda: driver)


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
        check_device(name, lambda: driver)
    assert caught.value.exit_code == 78


def test_the_driver_is_asked_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_checks, "_ASK", "import signal; signal.pause()")
    monkeypatch.setattr(host_checks, "PATIENCE_S", 0.05)
    with pytest.raises(ConfigError, match="does not answer"):
        ask_driver()


def test_an_answer_that_is_none_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_checks, "_ASK", "raise OSError('libcuda.so.1')")
    assert ask_driver() is None
    monkeypatch.setattr(host_checks, "_ASK", "print(0, 3)")
    assert ask_driver() == Driver(0, 3)


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
