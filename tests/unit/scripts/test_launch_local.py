"""The launcher's options; running is tests/integration/test_launch_local.py."""

from __future__ import annotations

import pytest

from dtd.errors import JobSpecError, UsageError
from scripts.launch_local import _parser, job_spec, main


def spec(*arguments):
    return job_spec(_parser().parse_args(arguments))


def test_options_and_overrides():
    line = "--task my.pkg:Task --epochs 2 --batch_size 64 --lr 0.5 --threads 2 --set task.width=8"
    made = spec(*line.split(), "--set", "elastic.settle_s=1.5")
    assert made["job"]["task"] == "my.pkg:Task"
    assert made["job"]["epochs"] == 2
    assert made["job"]["global_batch_size"] == 64
    assert made["optimizer"]["lr"] == 0.5
    assert made["train"]["threads"] == 2
    assert made["task"] == {"width": 8}
    assert made["elastic"]["settle_s"] == 1.5


def test_what_cannot_be_is_said_before_anything_starts(tmp_path):
    with pytest.raises(UsageError, match="--num_servers: -1 is less than 0"):
        spec("--num_servers", "-1")
    with pytest.raises(UsageError, match="--num_workers: 0 is less than 1"):
        spec("--num_workers", "0")
    with pytest.raises(JobSpecError, match="epochs"):
        spec("--epochs", "0")
    with pytest.raises(JobSpecError):
        spec("--job", str(tmp_path / "missing.toml"))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--listen", "nonsense"], "--listen must be HOST:PORT"),
        (["--state-dir", "/dev/null/deep"], "--state-dir: /dev/null/deep cannot be created"),
        (["--num_workers", "-1"], "--num_workers: -1"),
        (["--state-dir", "/tmp/x", "--discard"], "--discard stands beside --state-dir /tmp/x"),
    ],
)
def test_usage_exits_2(arguments, why, capsys, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_arguments: None)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {why}")
