"""Where a credential is looked for, and what does not count as one."""

from __future__ import annotations

from pathlib import Path

from dtd.security.targets import credential_places, find_credential


def test_it_is_looked_for_where_it_is_put(tmp_path: Path) -> None:
    system = tmp_path / "system"
    environ = {"HOME": "/h", "CREDENTIALS_DIRECTORY": "/run/c"}
    places = credential_places("w.credential", environ, system=(system,))
    assert [str(one) for one in places] == [
        "/run/c/w.credential",
        "/h/.config/dtd/w.credential",
        str(system),
    ]
    assert find_credential(places) is None
    system.touch()
    assert find_credential(places) == system


def test_the_units_stand_in_is_none(tmp_path: Path) -> None:
    handed, own = tmp_path / "handed", tmp_path / "own"
    handed.write_text("# none\n")
    assert find_credential((handed, own)) is None
    own.write_text("# none of this is read here")
    assert find_credential((handed, own)) == own
