"""What was revoked, signed by the authority and believed of nobody else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dtd.errors import RequestRefused
from dtd.security.authority import Authority
from dtd.security.credential_book import RevokedRecord
from dtd.security.revocation_list import MAX_BYTES, body_of, joined, parted, read

END_S = time.time() + 1000
FIRST = RevokedRecord(serial="a1", revoked_s=1.0, expires_s=END_S)
SECOND = RevokedRecord(serial="b2", revoked_s=2.0, expires_s=END_S)


def test_a_list_is_read_as_it_was_written_and_equal_lists_are_equal_bytes() -> None:
    body = body_of("c", [SECOND, FIRST])
    assert body == body_of("c", [FIRST, SECOND])
    assert parted(joined(b"sig", body)) == (b"sig", body)
    assert read(body) == ("c", [FIRST, SECOND])


@pytest.mark.parametrize(
    "document",
    [b"", b"ab", b"xy\n{}", b"ff" * 100 + b"\n{}", b"ff\n" + b" " * MAX_BYTES],
)
def test_what_has_another_form_is_no_list(document: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
        parted(document)


@pytest.mark.parametrize(
    "body",
    [
        *(b"{", b"[]", b"{}", b'{"revoked": 1}', b'{"revoked": [1]}', b'{"revoked": [[1, 2, 3]]}'),
        *(b'{"revoked": [["a", null, 1]]}', b'{"revoked": [["a", 1]]}'),
    ],
)
def test_what_lists_nothing_is_none(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
        read(body)


def test_the_authority_takes_back_what_it_has_signed_before(
    authority: Authority, tmp_path: Path
) -> None:
    for name in ("host7", "host8"):
        authority.enrol(tmp_path / name, "worker", name, coordinators=())
    before = Authority(authority.directory)  # as in a backup
    (record,) = authority.credentials.revoke("host7", now_s=time.time())
    (authority.directory / "revoked.json").unlink()
    document = authority.revocations()
    assert before.credentials.revoked() == []
    assert [one.serial for one in before.merge_revocations(document)] == [record.serial]
    assert before.credentials.is_revoked(record.serial, record.id)
    assert Authority(authority.directory).credentials.is_revoked(record.serial, record.id)
    assert before.merge_revocations(document) == []
    assert before.revocations().partition(b"\n")[2] == document.partition(b"\n")[2]


def test_nobody_else_is_believed(authority: Authority, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other")
    body = body_of(authority.cluster, [FIRST])
    signature, _body = parted(authority.revocations())
    for document in (b"", b"x", other.revocations(), joined(signature, body), joined(b"", body)):
        with pytest.raises(RequestRefused, match="a list of revocations is rejected"):
            authority.merge_revocations(document)
    assert authority.credentials.revoked() == []
