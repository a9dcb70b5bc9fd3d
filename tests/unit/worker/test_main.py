"""The process around the worker: its device and name, and its ends."""

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
from dtd.config import WorkerConfig, load_worker_config
from dtd.errors import ConfigError
from dtd.security.targets import Target
from dtd.worker.daemon import Worker
from dtd.worker.main import what_it_is, with_instance


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


@pytest.mark.parametrize(
    ("instance", "device"),
    [
        ("cpu", "cpu"),
        ("cpu-2", "cpu"),
        ("cpu-left_half.1", "cpu"),
        ("cuda0", "cuda:0"),
        ("cuda12", "cuda:12"),
        ("cuda0-b", "cuda:0"),
    ],
)
def test_an_instance_names_its_device(instance, device):
    assert what_it_is(instance) == {"device": device}


@pytest.mark.parametrize("instance", ["server", "server-2"])
def test_an_instance_names_a_parameter_server(instance, tmp_path):
    flags = with_instance({"instance": instance}, {}, "host7")
    config = load_worker_config(flags, {}, default_file=tmp_path / "none")
    assert (config.role, config.device, config.name) == ("server", "cpu", f"host7-{instance}")


def test_a_parameter_server_is_named_after_its_role_and_needs_no_gpu(tmp_path):
    none = tmp_path / "none"
    config = load_worker_config({"role": "server"}, {}, default_file=none, hostname="host7")
    assert config.name == "host7-server"
    with pytest.raises(ConfigError, match='device: must be "cpu" for a parameter server'):
        load_worker_config({"role": "server", "device": "cuda:0"}, {}, default_file=none)


@pytest.mark.parametrize(
    "instance", ["", "gpu", "cuda", "cpu2", "cuda:0", "cuda01", "cpu-", "cpu 2", "server0"]
)
def test_anything_else_is_refused_in_words(instance):
    with pytest.raises(ConfigError, match="does not name a device") as caught:
        what_it_is(instance)
    assert "dtd-worker@cuda0" in caught.value.remedy


def test_it_fills_in_device_and_name():
    assert with_instance({"instance": "cuda1-b", "threads": "2"}, {}, "host 7") == {
        "device": "cuda:1",
        "name": "host-7-cuda1-b",
        "threads": "2",
    }


def test_flags_and_variables_win():
    flags = {"instance": "cpu", "name": "left"}
    assert with_instance(flags, {"DTD_DEVICE": "cuda:0"}, "host") == {"name": "left"}
    assert with_instance({"instance": "cpu"}, {"DTD_NAME": "left"}, "host") == {"device": "cpu"}


def test_without_an_instance_nothing_changes():
    assert with_instance({"device": "cpu"}, {}, "host") == {"device": "cpu"}


def test_the_longest_name_is_one(tmp_path):
    instance = f"cuda999-{'x' * 15}"
    flags = with_instance({"instance": instance}, {}, "h" * 200)
    config = load_worker_config(flags, {}, default_file=tmp_path / "none")
    assert len(config.name) == 64
    assert config.name.endswith(instance)


def test_a_host_without_a_plain_name():
    assert with_instance({"instance": "cpu"}, {}, "...")["name"] == "worker-cpu"
