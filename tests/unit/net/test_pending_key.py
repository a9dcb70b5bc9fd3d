"""The key of a host that joins is the same until its certificate is here."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtd.net.join_client import forget_pending_key, pending_key
from dtd.security.certificates import key_sha256


def test_it_is_kept_for_the_token_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "d" / "worker.credential"
    first = key_sha256(pending_key(path, "0123abcd").public_key())
    assert key_sha256(pending_key(path, "0123abcd").public_key()) == first
    (kept,) = path.parent.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert key_sha256(pending_key(path, "ffffffff").public_key()) != first
    forget_pending_key(path)
    forget_pending_key(path)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(("content", "mode"), [(b"", 0o600), (b"x", 0o600), (None, 0o644)])
def test_what_is_damaged_or_read_by_others_is_made_anew(
    tmp_path: Path, content: bytes | None, mode: int
) -> None:
    path = tmp_path / "worker.credential"
    first = key_sha256(pending_key(path, "0123abcd").public_key())
    (kept,) = tmp_path.iterdir()
    if content is not None:
        kept.write_bytes(content)
    kept.chmod(mode)
    assert key_sha256(pending_key(path, "0123abcd").public_key()) != first
