"""Where state is kept, and where a coordinator of this host is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import dtd.places as places
from dtd.errors import ConfigError
from dtd.places import find_sockets, require_linux, socket_place, state_directory


@pytest.fixture(autouse=True)
def person(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not root, and /run is elsewhere."""
    monkeypatch.setattr(places.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(places, "_RUNTIME", tmp_path / "run")


def found(environ: dict[str, str]) -> list[str]:
    return [one.path for one in find_sockets(environ)]


def put(socket: Path) -> str:
    socket.parent.mkdir(parents=True)
    socket.touch()
    return str(socket)


def test_state_is_kept_where_systemd_says_or_below_the_home() -> None:
    assert state_directory("coordinator", {"STATE_DIRECTORY": "/a:/b"}) == Path("/a")
    assert state_directory("w", {"HOME": "/h"}) == Path("/h/.local/state/dtd/w")
    assert state_directory("w", {}) == Path("/var/lib/dtd/w")


def test_the_socket_lies_in_the_runtime_directory_else_beside_the_state() -> None:
    assert socket_place(Path("/s"), {"RUNTIME_DIRECTORY": "/r:/q"}) == Path("/r/control.sock")
    assert socket_place(Path("/s"), {}) == Path("/s/control.sock")


def test_all_that_are_there_are_found_the_own_ones_first(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path / "user"), "HOME": str(tmp_path / "home")}
    system = put(tmp_path / "run/dtd/coordinator/control.sock")
    assert found(environ) == [system]
    by_hand = put(tmp_path / "home/.local/state/dtd/coordinator/control.sock")
    service = put(tmp_path / "user/dtd/coordinator/control.sock")
    assert found(environ) == [service, by_hand, system]


def test_where_there_is_none_the_likely_one_is_named(tmp_path: Path) -> None:
    home, user = str(tmp_path / "home"), str(tmp_path / "user")
    by_hand = f"{home}/.local/state/dtd/coordinator/control.sock"
    assert found({"HOME": home}) == [by_hand]
    assert found({"HOME": home, "XDG_RUNTIME_DIR": user}) == [by_hand]
    service = {"HOME": home, "STATE_DIRECTORY": "/s"}
    assert found(service) == [f"{tmp_path}/run/dtd/coordinator/control.sock"]
    own_service = {**service, "XDG_RUNTIME_DIR": user}
    assert found(own_service) == [f"{user}/dtd/coordinator/control.sock"]


# --- where dtd runs ------------------------------------------------------------------------------


def test_linux_is_accepted() -> None:
    require_linux("linux")


def test_anything_else_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="runs on Linux only, and this is darwin"):
        require_linux("darwin")
