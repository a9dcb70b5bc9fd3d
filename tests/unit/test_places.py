"""Where state is kept, and where a coordinator of this host is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import dtd.host.places as places
from dtd.errors import ConfigError
from dtd.host.places import require_linux, socket_place, state_directory


@pytest.fixture(autouse=True)
def person(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not root, and /run is elsewhere."""
    monkeypatch.setattr(places.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(places, "_RUNTIME", tmp_path / "run")


def test_state_is_kept_where_systemd_says_or_below_the_home() -> None:
    assert state_directory("coordinator", {"STATE_DIRECTORY": "/a:/b"}) == Path("/a")
    assert state_directory("w", {"HOME": "/h"}) == Path("/h/.local/state/dtd/w")
    assert state_directory("w", {}) == Path("/var/lib/dtd/w")


def test_the_socket_lies_in_the_runtime_directory_else_beside_the_state() -> None:
    assert socket_place(Path("/s"), {"RUNTIME_DIRECTORY": "/r:/q"}) == Path("/r/control.sock")
    assert socket_place(Path("/s"), {}) == Path("/s/control.sock")


# --- where dtd runs ------------------------------------------------------------------------------


def test_anything_else_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="runs on Linux only, and this is darwin"):
        require_linux("darwin")
