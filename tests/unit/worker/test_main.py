"""The process around the worker: it stops when it is told to, whatever is under way."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

import dtd.worker.main as main_module
from dtd import __version__
from dtd.address import Address
from dtd.config import WorkerConfig
from dtd.core import member
from dtd.worker.daemon import Worker


@pytest.fixture
def config(tmp_path):
    return WorkerConfig(
        name="worker-0", coordinator=Address("127.0.0.1", 1), state_dir=tmp_path / "state"
    )


class Restarting:
    """A worker whose job has just ended when a signal comes, or does not."""

    number = None

    def __init__(self, config):
        self._stopped = asyncio.Event()

    def stop(self, reason):
        self._stopped.set()

    async def run(self):
        if self.number is not None:
            os.kill(os.getpid(), self.number)
            await self._stopped.wait()
        return member.Restart(reason="job digits-1 is done")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_during_a_restart_is_not_forgotten(monkeypatch, config, number):
    monkeypatch.setattr(main_module, "Worker", Restarting)
    monkeypatch.setattr(Restarting, "number", number)
    assert isinstance(await main_module._serve(config), member.Exit)


async def test_a_job_that_ends_leads_to_a_restart(monkeypatch, config):
    monkeypatch.setattr(main_module, "Worker", Restarting)
    assert isinstance(await main_module._serve(config), member.Restart)


async def test_a_worker_that_is_told_to_stop_before_it_serves_ends(config):
    worker = Worker(config)
    worker.stop("SIGTERM")
    assert await worker.ending == member.Exit(reason="SIGTERM")


async def test_without_a_coordinator_it_serves_until_it_is_stopped(config):
    worker = Worker(config)
    asyncio.get_running_loop().call_soon(worker.stop, "SIGTERM")
    async with asyncio.timeout(30):
        assert await worker.run() == member.Exit(reason="SIGTERM")


def test_wrong_settings_are_said_in_words(capsys, tmp_path):
    arguments = ["--device", "tpu", "--state-dir", str(tmp_path)]
    assert main_module.main(arguments) == 78
    assert "dtd-worker: " in capsys.readouterr().err


def test_a_state_directory_that_cannot_be_made(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    arguments = ["--state-dir", str(tmp_path / "file" / "state")]
    assert main_module.main(arguments) == 78
    assert "cannot be used" in capsys.readouterr().err


def test_the_version(capsys):
    with pytest.raises(SystemExit):
        main_module.main(["--version"])
    assert capsys.readouterr().out == f"dtd {__version__}\n"
