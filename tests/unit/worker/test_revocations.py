"""What a worker remembers of what was revoked, also against a coordinator that has forgotten it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtd.security.credential_book import RevokedRecord
from dtd.security.revocation_list import body_of, joined
from dtd.worker.remembered import Revocations

NOW_S = 1000.0


def document(
    *serials: str, cluster: str = "c", revoked_s: float = NOW_S, ends_s: float = NOW_S + 1000
) -> bytes:
    records = [RevokedRecord(serial=one, revoked_s=revoked_s, expires_s=ends_s) for one in serials]
    return joined(b"sig", body_of(cluster, records))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "revocations"


def test_the_next_process_knows_it(path: Path) -> None:
    known = Revocations(path)
    assert known.document == b""
    assert known.heard(document("a"))
    known.save()
    assert path.stat().st_mode & 0o777 == 0o600
    again = Revocations(path)
    assert again.document == document("a")
    assert not again.heard(document("a"))
    assert again.heard(document("a", "b"))


def test_what_a_restored_coordinator_leaves_out_is_kept(path: Path) -> None:
    known = Revocations(path)
    known.heard(document("a", "b"))
    assert not known.heard(document("a"))
    assert not known.heard(b"")
    assert known.document == document("a", "b")


def test_what_has_ended_or_is_of_another_cluster_is_let_go(path: Path) -> None:
    known = Revocations(path)
    """By the coordinator's clock, whatever this host's shows."""
    known.heard(document("a"))
    assert not known.heard(document("b", revoked_s=NOW_S + 999))
    assert known.heard(document("b", revoked_s=NOW_S + 1000, ends_s=NOW_S + 2000))
    assert known.heard(document("c", cluster="other"))


def test_what_is_no_list_is_left(path: Path) -> None:
    known = Revocations(path)
    known.heard(document("a"))
    assert not known.heard(b"nonsense")
    assert known.document == document("a")


def test_a_damaged_file_knows_nothing(path: Path) -> None:
    path.touch(0o600)
    path.write_text("nonsense")
    assert Revocations(path).document == b""
    path.write_bytes(document("a"))
    path.chmod(0o644)
    assert Revocations(path).document == b""


def test_a_disk_that_is_full_is_no_reason_to_end(tmp_path: Path) -> None:
    known = Revocations(tmp_path / "missing" / "revocations")
    known.heard(document("a"))
    known.save()
