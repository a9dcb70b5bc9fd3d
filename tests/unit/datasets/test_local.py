"""The path of data in the process that trains."""

from __future__ import annotations

from pathlib import Path

import pytest

import dtd
from dtd.datasets.local import VARIABLE, in_environment
from dtd.errors import TaskError


def test_paths_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in in_environment({"images": Path("/a b"), "x": "/ü"}).items():
        monkeypatch.setenv(key, value)
    assert dtd.data_path("images") == Path("/a b")
    assert dtd.data_path("x") == Path("/ü")
    with pytest.raises(TaskError, match="no data 'y'; it has images, x"):
        dtd.data_path("y")


def test_a_job_without_data_is_told_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(TaskError, match="the job has no data 'x'") as told:
        dtd.data_path("x")
    assert 'add x = "/PATH" to its [data]' in told.value.remedy
    monkeypatch.setenv(VARIABLE, "[]")
    with pytest.raises(TaskError, match="is not a JSON object"):
        dtd.data_path("x")
