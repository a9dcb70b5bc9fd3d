"""An authority in a directory of its own, and credentials of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest

from dtd.address import Address
from dtd.security.authority import Authority
from dtd.security.credential import Credential

COORDINATORS = (Address("10.0.0.1", 7117), Address("fd00::1", 7118))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "pki")


@pytest.fixture
def credential(authority: Authority, tmp_path: Path) -> Callable[..., Credential]:
    """Makes a credential of a role and a name."""

    def make(role: str = "worker", name: str = "host7") -> Credential:
        path = tmp_path / f"{role}-{name}.credential"
        authority.enrol(path, role, name, coordinators=COORDINATORS)
        return Credential.load(path)

    return make


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
