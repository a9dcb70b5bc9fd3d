"""The coordinator's own certificate: never one that members could not accept."""

from __future__ import annotations

from pathlib import Path

from dtd.address import Address
from dtd.security.authority import Authority

HERE = (Address("10.0.0.1", 7117),)
YEAR_DAYS = 365.0


def passes(authority: Authority, days: float) -> None:
    before = authority.now_s
    authority.now_s = lambda: before() + days * 86400.0  # type: ignore[method-assign]


def served(authority: Authority) -> bytes:
    return (authority.directory / "server.pem").read_bytes()


def test_one_that_was_made_when_the_clock_was_ahead_is_made_anew(tmp_path: Path) -> None:
    """A host whose clock was wrong when it started: else nobody could call for that year."""
    ahead = Authority.create(tmp_path / "pki")
    passes(ahead, YEAR_DAYS)
    ahead.equip(HERE)
    ahead.server_context()
    files = [ahead.directory / leaf for leaf in ("server.pem", "operator.credential")]
    wrong = [path.read_bytes() for path in files]
    authority = Authority(ahead.directory)
    authority.equip(HERE)
    assert authority.renew_server()
    assert all(path.read_bytes() != old for path, old in zip(files, wrong, strict=True))
    assert not authority.own_are_due()


def test_a_caller_that_only_serves_with_it_leaves_its_renewal_to_those_that_tell_the_port(
    authority: Authority,
) -> None:
    """The metrics' thread once renewed it, and the control port went on with the old one."""
    authority.equip(HERE)
    authority.renew_server()
    old = served(authority)
    passes(authority, 20.1)
    authority.server_context()
    assert served(authority) == old
    assert authority.own_are_due()
    assert authority.renew_server()
