"""Which file holds the credential that counts, and where a renewed one goes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from dtd.security.credential import (
    head_of,
    newest,
    place_of_renewed,
    places_of_renewed,
)

DAY = dt.timedelta(days=1)
START = dt.datetime(2026, 11, 22, tzinfo=dt.UTC)


def write(path: Path, *, day: int = 0, **more: str | None) -> Path:
    head = {
        "role": "worker",
        "name": "host7",
        "credential": "a1",
        "issued": (START + day * DAY).isoformat(),
        "expires": (START + (day + 30) * DAY).isoformat(),
        **more,
    }
    lines = [f"# {key}: {value}" for key, value in head.items() if value is not None]
    path.write_text("\n".join(["# dtd credential 1", *lines, "-----BEGIN", "# role: x"]))
    return path


def test_the_newest_of_the_same_credential_counts(tmp_path: Path) -> None:
    given = write(tmp_path / "given")
    later, latest = write(tmp_path / "b", day=20), write(tmp_path / "c", day=40)
    assert newest(given, (later, latest, tmp_path / "missing")) == latest
    assert newest(latest, (given, later)) == latest


@pytest.mark.parametrize(
    "other", [{"credential": "b2"}, {"name": "host8"}, {"role": "operator"}, {"credential": None}]
)
def test_another_credential_does_not(tmp_path: Path, other: dict) -> None:
    """As of a host that has joined again."""
    given = write(tmp_path / "given")
    assert newest(given, (write(tmp_path / "b", day=20, **other),)) == given


def test_a_file_of_before_is_renewed_by_one_of_its_name(tmp_path: Path) -> None:
    given = write(tmp_path / "given", credential=None, issued=None)
    assert newest(given, (write(tmp_path / "b"),)) == tmp_path / "b"


def test_the_head_ends_before_the_key(tmp_path: Path) -> None:
    assert head_of(write(tmp_path / "given"))["role"] == "worker"


def test_a_renewed_one_takes_the_place_of_its_file_if_that_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, state_dir = tmp_path / "etc" / "worker.credential", tmp_path / "state" / "worker-cpu"
    shared = tmp_path / "state" / "workers"
    may_write = [given.parent]
    monkeypatch.setattr("os.access", lambda path, _mode: path in may_write)
    assert place_of_renewed(given, None) == given
    assert place_of_renewed(given, state_dir) == given
    may_write[:] = [shared]
    assert place_of_renewed(given, state_dir) == shared / "renewed.credential"
    may_write[:] = []
    assert place_of_renewed(given, state_dir) == state_dir / "renewed.credential"
    assert set(places_of_renewed(state_dir)) == {
        shared / "renewed.credential",
        state_dir / "renewed.credential",
    }
