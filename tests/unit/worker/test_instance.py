"""From a unit's instance to device and name."""

from __future__ import annotations

import pytest

from dtd.config import load_worker_config
from dtd.errors import ConfigError
from dtd.worker.main import what_it_is, with_instance


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
