"""The process around the worker: it stops when it is told to, whatever is under way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket

import pytest

import dtd.worker.main as main_module
from dtd import __version__
from dtd.address import SocketPath
from dtd.cluster import member
from dtd.config import WorkerConfig
from dtd.security.targets import Target
from dtd.worker.daemon import Worker


@pytest.fixture
def config(tmp_path):
    return WorkerConfig(
        name="worker-0", coordinator=(SocketPath("/nonexistent/s"),), state_dir=tmp_path / "state"
    )


class Restarting:
    """A worker whose job has just ended when a signal comes, or does not."""

    number = None
    drilled = False
    failure = None

    def __init__(self, config, coordinators, credential, *, last_end, instance):
        self._stopped = asyncio.Event()

    def stop(self, reason):
        self._stopped.set()

    def describe(self):
        return "waits for a job"

    async def start(self):
        pass

    async def run(self):
        if self.number is not None:
            os.kill(os.getpid(), self.number)
            await self._stopped.wait()
        return member.Restart(reason="job digits-1 is done")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_during_a_restart_is_not_forgotten(monkeypatch, config, number):
    monkeypatch.setattr(main_module, "Worker", Restarting)
    monkeypatch.setattr(Restarting, "number", number)
    assert await main_module._serve(config, None) == 0


async def test_a_worker_that_was_told_to_end_for_practice_is_to_be_started_again(
    monkeypatch, config
):
    monkeypatch.setattr(main_module, "Worker", Restarting)
    monkeypatch.setattr(Restarting, "number", signal.SIGTERM)
    monkeypatch.setattr(Restarting, "drilled", True)
    assert await main_module._serve(config, None) == main_module.START_AGAIN_EXIT_CODE


async def test_a_job_that_ends_leads_to_a_restart(monkeypatch, config):
    monkeypatch.setattr(main_module, "Worker", Restarting)
    assert isinstance(await main_module._serve(config, None), member.Restart)


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """A service manager's socket."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(str(tmp_path / "notify"))
    listening.settimeout(30)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    yield listening
    listening.close()


def heard(manager):
    """All that has been said."""
    manager.settimeout(0)
    words = []
    with contextlib.suppress(BlockingIOError):
        while True:
            words.append(manager.recv(4096).decode())
    return words


async def test_the_service_manager_hears_of_its_life(manager, config):
    serving = asyncio.create_task(main_module._serve(config, None))
    assert await asyncio.to_thread(manager.recv, 4096) == b"READY=1"
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(30):
        assert await serving == 0
    status, *_, last = heard(manager)
    assert status == "STATUS=waits for a job, connecting to the coordinator at unix:/nonexistent/s"
    assert last == "STOPPING=1"


async def test_a_restart_is_no_end_for_the_service_manager(manager, monkeypatch, config):
    monkeypatch.setattr(main_module, "Worker", Restarting)
    monkeypatch.setattr(Restarting, "number", None)
    await main_module._serve(config, None)
    assert set(heard(manager)) <= {"READY=1", "STATUS=waits for a job"}


async def test_a_worker_that_is_told_to_stop_before_it_serves_ends(config):
    worker = Worker(config, lambda: [Target(config.coordinator[0])], None)
    worker.stop("SIGTERM")
    assert await worker.ending == member.Exit(reason="SIGTERM")


async def test_without_a_coordinator_it_serves_until_it_is_stopped(config):
    worker = Worker(config, lambda: [Target(config.coordinator[0])], None)
    await worker.start()
    asyncio.get_running_loop().call_soon(worker.stop, "SIGTERM")
    async with asyncio.timeout(30):
        assert await worker.run() == member.Exit(reason="SIGTERM")


def test_its_heap_keeps_what_steps_free(monkeypatch, tmp_path):
    kept = []
    monkeypatch.setattr(main_module, "keep_freed_memory", lambda: kept.append("from the start"))
    main_module.main(["--device", "tpu", "--state-dir", str(tmp_path)])
    assert kept == ["from the start"]


def test_wrong_settings_are_said_in_words(capsys, tmp_path):
    arguments = ["--device", "tpu", "--state-dir", str(tmp_path)]
    assert main_module.main(arguments) == 78
    assert "dtd-worker: " in capsys.readouterr().err


def test_an_instance_that_names_no_device(capsys):
    assert main_module.main(["--instance", "gpu"]) == 78
    assert "dtd-worker@cuda0" in capsys.readouterr().err


def test_a_state_directory_that_cannot_be_made(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    arguments = ["--state-dir", str(tmp_path / "file" / "state")]
    assert main_module.main(arguments) == 78
    assert "cannot be used" in capsys.readouterr().err


def test_the_version(capsys):
    with pytest.raises(SystemExit):
        main_module.main(["--version"])
    assert capsys.readouterr().out == f"dtd {__version__}\n"
