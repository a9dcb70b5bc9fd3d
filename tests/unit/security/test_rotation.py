"""Replacing the authority on a disk that fails in the middle of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtd.errors import ConfigError, RequestRefused
from dtd.security import credential_book, identity, token_book
from dtd.security.authority import Authority


@pytest.mark.parametrize("book", [credential_book, token_book])
def test_an_end_that_fails_half_way_is_repeated(
    authority: Authority, credential, monkeypatch: pytest.MonkeyPatch, book
) -> None:
    """Else whoever has not renewed would go on, and tokens of the old authority stay good."""
    slow = credential("worker", "host7")
    authority.admission.create_token(identity.WORKER, life_s=60, coordinators=())
    authority.rotation.begin(overlap_s=3600)

    def is_full(path: Path, _records: object) -> None:
        raise ConfigError(f"{path} cannot be written: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(book, "write_records", is_full)
        with pytest.raises(ConfigError, match="No space"):
            authority.rotation.go_on((), at_once=True)
    authority.rotation.go_on((), at_once=True)
    assert authority.signers.rotation is None
    assert [one.serial for one in authority.credentials.revoked()] == [slow.id]
    assert authority.tokens.listed(now_s=authority.now_s()) == []


def test_an_end_of_what_has_not_begun_takes_nothing_back(authority: Authority, credential) -> None:
    credential("worker", "host7")
    authority.admission.create_token(identity.WORKER, life_s=60, coordinators=())
    with pytest.raises(RequestRefused, match="is not being replaced"):
        authority.rotation.go_on((), at_once=True)
    assert authority.credentials.revoked() == []
    assert len(authority.tokens.listed(now_s=authority.now_s())) == 1
