"""The authority's key is replaced in steps; each can be the last before the power is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtd.errors import ConfigError, RequestRefused
from dtd.security import signers
from dtd.security.authority import Authority
from dtd.security.signers import ENDS, RENEWS, SPREADS, Signers

NOW_S = 1_800_000_000.0


@pytest.fixture
def made(authority: Authority) -> Signers:
    return Signers(authority.directory)


def test_alone_it_signs_and_is_trusted(made: Signers) -> None:
    assert made.newest is made.of_members is made.current
    assert made.bundle_pem == made.current.pem
    with pytest.raises(RequestRefused, match="is not being replaced"):
        made.end()


def test_the_next_one_is_made_known_signs_and_takes_its_place(
    made: Signers, authority: Authority
) -> None:
    old = made.current.sha256
    made.begin(now_s=NOW_S, overlap_s=60.0)
    with pytest.raises(RequestRefused, match="is being replaced already"):
        made.begin(now_s=NOW_S, overlap_s=60.0)
    again = Signers(authority.directory)
    for one in (made, again):
        assert one.rotation is not None
        assert (one.rotation.phase, one.rotation.ends_s) == (SPREADS, NOW_S + 60)
        assert one.current.sha256 == one.of_members.sha256 == old
        assert one.bundle_pem == one.current.pem + one.newest.pem
    assert again.newest.sha256 == made.newest.sha256 != old
    made.let_renew()
    again = Signers(authority.directory)
    assert again.of_members.sha256 == again.newest.sha256
    assert again.current.sha256 == old
    new = made.newest.sha256
    made.end()
    for one in (made, Signers(authority.directory)):
        assert (one.current.sha256, one.next, one.rotation) == (new, None, None)
        assert one.cluster == authority.cluster
    assert not list(authority.directory.glob("next.*"))


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_an_end_in_the_middle_is_finished_by_the_next_process(
    made: Signers, authority: Authority, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    made.begin(now_s=NOW_S, overlap_s=60.0)
    made.let_renew()
    new, write = made.newest.sha256, signers.write_private
    left = [writes]

    def until_the_power_is_gone(path: Path, content: bytes) -> None:
        if path.name in ("ca.key", "ca.pem"):
            if not left[0]:
                raise OSError("gone")
            left[0] -= 1
        write(path, content)

    def no_unlinking(*_arguments: object, **_more: object) -> None:
        raise OSError("gone")

    monkeypatch.setattr(signers, "write_private", until_the_power_is_gone)
    monkeypatch.setattr(Path, "unlink", no_unlinking)
    with pytest.raises(OSError, match="gone"):
        made.end()
    monkeypatch.undo()
    again = Signers(authority.directory)
    assert (again.current.sha256, again.rotation) == (new, None)


def test_what_is_damaged_is_named(made: Signers, authority: Authority) -> None:
    made.begin(now_s=NOW_S, overlap_s=60.0)
    path = authority.directory / "rotation.json"
    for content, why in (('[{"phase": 1}]', r"rotation\.json is damaged"), ("x", "is damaged")):
        path.write_text(content)
        with pytest.raises(ConfigError, match=why):
            Signers(authority.directory)
    assert {SPREADS, RENEWS, ENDS} == {"spreads", "renews", "ends"}
