"""The process around the worker: its device and name, and its ends."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

import dtd.worker.main as main_module
from dtd.address import SocketPath
from dtd.cluster import member
from dtd.config import WorkerConfig, load_worker_config
from dtd.errors import ConfigError
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


async def test_a_worker_that_was_told_to_end_for_practice_is_to_be_started_again(
    monkeypatch, config
):
    monkeypatch.setattr(main_module, "Worker", Restarting)
    monkeypatch.setattr(Restarting, "number", signal.SIGTERM)
    monkeypatch.setattr(Restarting, "drilled", True)
    assert await main_module._serve(config, None) == main_module.START_AGAIN_EXIT_CODE


def test_wrong_settings_are_said_in_words(capsys, tmp_path):
    arguments = ["--device", "tpu", "--state-dir", str(tmp_path)]
    assert main_module.main(arguments) == 78
    assert "dtd-worker: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("instance", "device"),
    [
        ("cpu", "cpu"),
        ("cpu-left_half.1", "cpu"),
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


@pytest.mark.parametrize(
    "instance", ["", "gpu", "cuda", "cpu2", "cuda:0", "cuda01", "cpu-", "cpu 2", "server0"]
)
def test_anything_else_is_refused_in_words(instance):
    with pytest.raises(ConfigError, match="does not name a device") as caught:
        what_it_is(instance)
    assert "dtd-worker@cuda0" in caught.value.remedy
