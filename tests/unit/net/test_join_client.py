"""Joining and renewal on the host that asks."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path

import pytest

from dtd.address import Address
from dtd.errors import ConfigError
from dtd.net.clients.join_client import forget_pending_key, pending_key, write_renewed
from dtd.security import certificates
from dtd.security.authority import Authority
from dtd.security.certificates import key_sha256
from dtd.security.credential import Credential
from dtd.wire import messages as m

# --- the key of a host that joins ----------------------------------------------------------------


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


# --- the answer to RENEW -------------------------------------------------------------------------


HERE = Address("10.0.0.1", 7117)
DAY = dt.timedelta(days=1)


@pytest.fixture
def credential(tmp_path: Path) -> Credential:
    authority = Authority.create(tmp_path / "pki")
    path = tmp_path / "worker.credential"
    authority.enrol(path, "worker", "host7", coordinators=(HERE,))
    return Credential.load(path)


def answer_of(credential: Credential) -> m.Renewed:
    """One with the certificate that the credential has, as if it had been sent."""
    begin = "-----BEGIN CERTIFICATE-----"
    blocks = [begin + one for one in credential.path.read_text().split(begin)[1:]]
    return m.Renewed(certificate_pem=blocks[0], coordinators="10.0.0.2:7117")


def test_it_takes_the_place_of_the_file(credential: Credential) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(credential.path.read_bytes().partition(b"-----BEGIN CERT")[0], None)
    now = dt.datetime.now(dt.UTC)
    made = write_renewed(credential, key, answer_of(credential), credential.path, now=now)  # type: ignore[arg-type]
    assert made.coordinators == (Address("10.0.0.2", 7117),)
    assert dataclasses.replace(made, coordinators=(HERE,)) == credential
    assert credential.path.stat().st_mode & 0o777 == 0o600
    write_renewed(credential, key, answer_of(credential), credential.path, now=now - DAY)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="this host's clock shows"):
        write_renewed(
            credential,
            key,  # type: ignore[arg-type]
            answer_of(credential),
            credential.path,
            now=now + 31 * DAY,
        )


def test_what_is_for_another_key_or_no_certificate_is_left(credential: Credential) -> None:
    before, now = credential.path.read_bytes(), dt.datetime.now(dt.UTC)
    key = certificates.new_key()
    for answer, why in (
        (answer_of(credential), "not a certificate for the key"),
        (m.Renewed(certificate_pem="x"), "is not a certificate"),
    ):
        with pytest.raises(ConfigError, match=why):
            write_renewed(credential, key, answer, credential.path, now=now)
    assert credential.path.read_bytes() == before
