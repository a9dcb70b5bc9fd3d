"""Which credentials were issued, and which were taken back for good."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtd.errors import ConfigError, RequestRefused
from dtd.security import credential_book
from dtd.security.credential_book import CredentialBook, IssuedRecord


def issued(serial: str, role: str = "worker", name: str = "host7") -> IssuedRecord:
    return IssuedRecord(
        serial=serial, role=role, name=name, issued_s=100.0, expires_s=1000.0, token="t"
    )


@pytest.fixture
def book(tmp_path: Path) -> CredentialBook:
    made = CredentialBook(tmp_path)
    made.add(issued("a1"))
    made.add(issued("a2"))
    made.add(issued("b1", "operator", "ann"))
    return made


def test_all_of_a_name_are_revoked_at_once_and_stay_so(
    book: CredentialBook, tmp_path: Path
) -> None:
    assert {one.serial for one in book.revoke("host7", now_s=200.0)} == {"a1", "a2"}
    for known in (book, CredentialBook(tmp_path)):
        assert [known.is_revoked(serial) for serial in ("a1", "a2", "b1")] == [True, True, False]
        assert [one["revoked_s"] for one in known.listed()] == [200.0, 200.0, 0.0]
    assert book.revoke("host7", now_s=300.0) == []


def test_one_serial_can_be_revoked(book: CredentialBook) -> None:
    assert [one.serial for one in book.revoke("a2", now_s=200.0)] == ["a2"]
    assert not book.is_revoked("a1")
    assert not book.is_revoked("")


def test_a_name_of_two_roles_needs_the_role(book: CredentialBook) -> None:
    book.add(issued("c1", "worker", "ann"))
    with pytest.raises(RequestRefused, match="several roles") as caught:
        book.revoke("ann", now_s=200.0)
    assert caught.value.remedy == "say which: operator/ann, worker/ann"
    assert [one.serial for one in book.revoke("worker/ann", now_s=200.0)] == ["c1"]


def test_nobody_of_that_name(book: CredentialBook) -> None:
    with pytest.raises(RequestRefused, match="there is no credential 'nobody'"):
        book.revoke("nobody", now_s=200.0)


def test_what_has_expired_makes_room(book: CredentialBook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credential_book, "MAX_ISSUED", 3)
    with pytest.raises(RequestRefused, match="3 credentials are valid"):
        book.add(issued("d1"))
    late = IssuedRecord(
        serial="d1", role="worker", name="x", issued_s=1000.0, expires_s=2000.0, token="t"
    )
    book.add(late)
    assert [one["serial"] for one in book.listed()] == ["d1"]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "issued.json").touch(0o600)
    (tmp_path / "issued.json").write_text('[{"serial": "x"}]')
    with pytest.raises(ConfigError, match="is damaged"):
        CredentialBook(tmp_path)
