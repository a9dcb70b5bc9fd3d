"""The daemons' settings: precedence, defaults, and everything wrong at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtd.address import Address
from dtd.config import load_coordinator_config, load_worker_config
from dtd.errors import ConfigError

NOWHERE = Path("/nonexistent/dtd.toml")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "dtd.toml"


def coordinator_problems(
    flags: dict[str, object], environ: dict[str, str] | None = None, file: Path = NOWHERE
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_coordinator_config(flags, environ or {}, default_file=file)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def worker_problems(
    flags: dict[str, object], environ: dict[str, str] | None = None, file: Path = NOWHERE
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_worker_config(flags, environ or {}, default_file=file)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


@pytest.mark.parametrize("value", ['"a,,b"', '["@"]', "[1]", '["a b"]', "1"])
def test_what_names_no_user_is_refused(file: Path, value: str) -> None:
    file.write_text(f"local_viewers = {value}\n")
    with pytest.raises(ConfigError, match="line 1: local_viewers: must be"):
        load_coordinator_config({}, {"STATE_DIRECTORY": "/s"}, default_file=file)


def test_flag_before_environment_before_file_before_default(file: Path) -> None:
    file.write_text('name = "file"\ndevice = "cuda:1"\nthreads = 4\n')
    environ = {"DTD_NAME": "environment", "DTD_DEVICE": "cuda:2", "DTD_LISTEN": ""}
    config = load_worker_config({"name": "flag", "device": None}, environ, default_file=file)
    assert (config.name, config.device, config.threads) == ("flag", "cuda:2", 4)
    assert (config.advertise, config.listen) == ("", Address("127.0.0.1", 0))


def test_text_becomes_numbers_paths_and_addresses(file: Path) -> None:
    flags = {"heartbeat_interval_s": "1", "state_dir": Path("/x")}
    environ = {"DTD_HEARTBEAT_TIMEOUT_S": "2.5", "DTD_LISTEN": "[::1]:0"}
    config = load_coordinator_config(flags, environ, default_file=NOWHERE)
    assert (config.heartbeat_interval_s, config.heartbeat_timeout_s) == (1.0, 2.5)
    assert type(config.heartbeat_interval_s) is float
    assert (config.listen, config.state_dir) == (Address("::1", 0), Path("/x"))
    typed = {"threads": "3", "coordinator": "10.0.0.1:7117, [fd00::1]:7118"}
    worker = load_worker_config(typed, {}, default_file=NOWHERE)
    assert worker.threads == 3
    assert worker.coordinator == (Address("10.0.0.1", 7117), Address("fd00::1", 7118))
    file.write_text('coordinator = ["10.0.0.1:7117", "[fd00::1]:7118"]\n')
    assert load_worker_config({}, {}, default_file=file).coordinator == worker.coordinator


def test_everything_wrong_is_reported_at_once_with_its_place(file: Path) -> None:
    file.write_text(
        '# settings\nname = "a b"\nthread = 3\n[zzz]\nx = 1\n',
    )
    flags: dict[str, object] = {
        "device": "cuda",
        "coordinator": "localhost",
        "threads": "many",
        "advertise": "host:x",
    }
    environ = {"DTD_LISTEN": "::1:4", "DTD_LOG_FORMAT": "jsn", "DTD_STATE_DIR": "a\nb"}
    assert worker_problems(flags, environ, file) == [
        f'{file}: line 3: thread: unknown key; did you mean "threads"?',
        f"{file}: line 4: zzz: unknown key",
        '--coordinator: must be HOST:PORT, not "localhost"',
        (
            f"{file}: line 2: name: must be 1 to 64 letters, digits, dots, dashes or underscores,"
            ' the first one a letter or digit, not "a b"'
        ),
        '--device: must be "cpu" or "cuda:N", not "cuda"',
        '--threads: must be an integer, at least 0 and at most 1024, not "many"',
        'DTD_LISTEN: must have an IPv6 address in brackets, as in [::1]:7117, not "::1:4"',
        r'DTD_STATE_DIR: must be a path without control characters, not "a\nb"',
        'DTD_LOG_FORMAT: must be one of "auto", "json", "console", not "jsn"; did you mean "json"?',
        'advertise: must end in a port from 0 to 65535, not "x", and is not a host name alone',
    ]


def test_a_file_that_is_no_toml_is_reported_beside_the_rest(file: Path) -> None:
    file.write_text("listen =\n")
    assert coordinator_problems({"listen": "x"}, file=file) == [
        f"{file}: line 1: not TOML: Invalid value (column 9)",
        '--listen: must be HOST:PORT, not "x"',
    ]


@pytest.mark.parametrize(
    ("advertise", "expected"),
    [
        ("", Address("127.0.0.1", 4000)),
        ("gpu-box", Address("gpu-box", 4000)),
        ("gpu-box:7200", Address("gpu-box", 7200)),
        ("[::1]:7200", Address("::1", 7200)),
    ],
)
def test_what_a_worker_advertises(advertise: str, expected: Address) -> None:
    config = load_worker_config(
        {"name": "w", "advertise": advertise}, {"STATE_DIRECTORY": "/s"}, default_file=NOWHERE
    )
    assert config.advertised(Address("127.0.0.1", 4000)) == expected
