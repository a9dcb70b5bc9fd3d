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


def test_all_of_a_name_are_revoked_at_once_and_stay_so(
    book: CredentialBook, tmp_path: Path
) -> None:
    assert {one.serial for one in book.revoke("host7", now_s=200.0)} == {"a1", "a2"}
    for known in (book, CredentialBook(tmp_path)):
        assert [known.is_revoked(serial, serial) for serial in ("a1", "a2", "b1")] == [
            *(True, True, False)
        ]
        assert [one["revoked_s"] for one in known.listed(now_s=200.0)] == [200.0, 200.0, 0.0]
    assert book.revoke("host7", now_s=300.0) == []


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


def test_what_renews_a_credential_is_taken_back_with_it(book: CredentialBook) -> None:
    book.add(issued("a3", credential="a1", expires_s=2000.0))
    assert {one.serial for one in book.revoke("a3", now_s=200.0)} == {"a1", "a3"}
    assert book.standing(who("a3", "a1"), now_s=300.0)[0].endswith("is revoked")
    assert book.standing(who("a4", "a1"), now_s=300.0)[0].endswith(
        "is revoked"
    )  # made from an older backup
    assert book.standing(who("a2", "a2"), now_s=300.0) == ("", "")


def free(book: CredentialBook, name: str, *workers: str, **more: object) -> list[IssuedRecord]:
    given = {"replaces": False, "key": "k", "now_s": 200.0, **more}
    return book.check_free("worker", name, workers, **given)  # type: ignore[arg-type]


def test_a_workers_name_of_another_credential_is_taken(book: CredentialBook) -> None:
    book.add(issued("c1", "worker", "big", workers=("big", "big-cpu"), key="big"))
    with pytest.raises(RequestRefused, match="big-cpu belongs to the credential worker/big"):
        free(book, "big-cpu", "big-cpu", replaces=True)
    assert free(book, "big-cpu", "big-cpu", key="big") == []  # the same host, which asks again


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


def test_somebody_may_call_while_the_stores_thread_goes_through_the_book(
    book: CredentialBook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restore, whoever calls with a renewed certificate is taken into the book."""
    mark_restored(tmp_path, now_s=200.0)
    restored = CredentialBook(tmp_path)
    is_revoked, callers = restored.is_revoked, iter(range(100))

    def somebody_calls(serial: str, credential: str) -> bool:
        with monkeypatch.context() as quiet:
            quiet.setattr(restored, "is_revoked", is_revoked)
            later = who(f"c{next(callers)}", "a1", issued_s=150.0)
            assert restored.standing(later, now_s=300.0) == ("", "")
        return is_revoked(serial, credential)

    monkeypatch.setattr(restored, "is_revoked", somebody_calls)
    assert len(restored.living(now_s=300.0)) == 3
