"""An authority in a directory of its own, and credentials of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest

from dtd.address import Address
from dtd.security import certificates
from dtd.security.authority import Authority
from dtd.security.credential import Credential, write_credential

COORDINATORS = (Address("10.0.0.1", 7117), Address("fd00::1", 7118))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "pki")


@pytest.fixture
def credential(authority: Authority, tmp_path: Path) -> Callable[..., Credential]:
    """Makes a credential of a role and a name."""

    def make(role: str = "worker", name: str = "host7") -> Credential:
        key = certificates.new_key()
        request = certificates.request_pem(key).decode()
        issued = authority.issue(role=role, name=name, request_pem=request, token="t")
        path = tmp_path / f"{role}-{name}.credential"
        write_credential(
            path,
            role=role,
            name=name,
            coordinators=COORDINATORS,
            key_pem=certificates.key_pem(key),
            certificate_pem=issued,
            expires=certificates.end_of(issued),
            authority_pem=authority.certificate_pem,
        )
        return Credential.load(path)

    return make


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
