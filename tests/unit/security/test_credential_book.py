"""Which credentials were issued, and which were taken back for good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dtd.errors import RequestRefused
from dtd.security.credential_book import CredentialBook, IssuedRecord, mark_restored
from dtd.security.identity import Identity


def who(serial: str, credential: str = "", **more: Any) -> Identity:
    usual = {"role": "worker", "name": "host7", "fingerprint": "f", "where": "certificate"}
    times = {"issued_s": 100.0, "expires_s": 1000.0}
    return Identity(**{"serial": serial, "credential": credential, **usual, **times, **more})


USUAL: dict[str, Any] = {
    "issued_s": 100.0,
    "expires_s": 1000.0,
    "token": "t",
    "workers": (),
    "key": "",
    "fingerprint": "f",
}


def issued(serial: str, role: str = "worker", name: str = "host7", **more: Any) -> IssuedRecord:
    return IssuedRecord(
        serial=serial,
        role=role,
        name=name,
        **{**USUAL, "credential": serial, **more},
    )


@pytest.fixture
def book(tmp_path: Path) -> CredentialBook:
    made = CredentialBook(tmp_path)
    made.add(issued("a1"))
    made.add(issued("a2"))
    made.add(issued("b1", "operator", "ann"))
    return made


def test_a_certificate_counts_only_while_it_is_in_the_book(book: CredentialBook) -> None:
    assert book.standing(who("a1", "a1"), now_s=300.0) == ("", "")
    assert book.standing(who(""), now_s=300.0) == ("", "")
    why, _remedy = book.standing(who("a1", "a1"), now_s=1000.0)
    assert why == "the credential of worker/host7 has expired and was not renewed"
    why, remedy = book.standing(who("ffff", "ffff"), now_s=300.0)
    assert why == "the certificate ffff of worker/host7 was not issued by this coordinator"
    assert "join again" in remedy
    book.revoke("a1", now_s=200.0)
    assert (
        book.standing(who("a1", "a1"), now_s=300.0)[0]
        == "the credential of worker/host7 is revoked"
    )


@pytest.mark.parametrize(
    "other",
    [{"fingerprint": "e"}, {"role": "operator"}, {"name": "host8"}, {"credential": "a2"}],
)
def test_another_certificate_with_the_serial_of_an_issued_one_does_not_count(
    book: CredentialBook, tmp_path: Path, other: dict[str, str]
) -> None:
    """Whoever has the authority's key can sign any serial."""
    book.add(issued("a3", fingerprint="f"))
    assert book.standing(who("a3", "a3"), now_s=300.0) == ("", "")
    forged = who("a3", **{"credential": "a3", **other})
    assert "was not issued" in book.standing(forged, now_s=300.0)[0]
    mark_restored(tmp_path, now_s=200.0)
    restored = CredentialBook(tmp_path)
    renewed = who("a9", "a3", issued_s=150.0)
    assert restored.standing(renewed, now_s=300.0) == ("", "")
    changed = who("a9", **{"credential": "a3", "issued_s": 150.0, **other})
    assert "was not issued" in restored.standing(changed, now_s=300.0)[0]


def free(book: CredentialBook, name: str, *workers: str, **more: object) -> list[IssuedRecord]:
    given = {"replaces": False, "key": "k", "now_s": 200.0, **more}
    return book.check_free("worker", name, workers, **given)  # type: ignore[arg-type]


def test_after_a_restore_what_renews_a_known_credential_counts(
    book: CredentialBook, tmp_path: Path
) -> None:
    later = who("a9", "a1", issued_s=150.0)
    assert "was not issued by this coordinator" in book.standing(later, now_s=300.0)[0]
    (tmp_path / "tokens.json").touch()
    mark_restored(tmp_path, now_s=200.0)
    assert not (tmp_path / "tokens.json").exists()
    restored = CredentialBook(tmp_path)
    assert restored.standing(later, now_s=300.0) == ("", "")
    assert (
        "was not issued by this coordinator"
        in restored.standing(who("a8", "a1", issued_s=200.0), now_s=300.0)[0]
    )
    assert (
        "was not issued by this coordinator"
        in restored.standing(who("f9", "f9", issued_s=150.0), now_s=300.0)[0]
    )
    with pytest.raises(RequestRefused, match="already has a valid credential"):
        free(restored, "host7")
    assert {one.serial for one in restored.revoke("host7", now_s=300.0)} == {"a1", "a2", "a9"}
    assert restored.standing(later, now_s=300.0)[0].endswith("is revoked")
