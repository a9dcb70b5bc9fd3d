"""A credential in a file: what is read, what is refused, and where it is looked for."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from dtd.errors import ConfigError
from dtd.security.credential import Credential


def test_it_is_read_again_if_it_is_renewed_while_it_is_read(credential, monkeypatch) -> None:
    old, new = credential(), credential("worker", "host8").path.read_bytes()
    plain = ssl.SSLContext.load_cert_chain
    reads = []

    def replaced_between(context, path):
        reads.append(path)
        if len(reads) == 1:  # it reads the file twice: the certificate, then the key
            Path(path).write_bytes(new)
            raise ssl.SSLError("key values mismatch")
        plain(context, path)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", replaced_between)
    assert Credential.read(old.path).name == "host8"
    assert len(reads) == 2


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o640, 0o660])
def test_others_must_not_read_it(credential, mode: int) -> None:
    path = credential().path
    path.chmod(mode)
    with pytest.raises(ConfigError, match="accessible to users other") as caught:
        Credential.load(path, {})
    assert "chmod 600" in caught.value.remedy


def test_the_service_manager_may_let_its_group_read_it(credential) -> None:
    path = credential().path
    path.chmod(0o440)
    assert Credential.load(path, {"CREDENTIALS_DIRECTORY": str(path.parent)}).name == "host7"
    with pytest.raises(ConfigError):
        Credential.load(path, {"CREDENTIALS_DIRECTORY": "/elsewhere"})


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("# dtd credential 1", "# dtd credential 2", "is not a dtd credential"),
        ("-----BEGIN CERTIFICATE-----", "-----BEGIN-----", "is not a dtd credential"),
        ("10.0.0.1:7117", "10.0.0.1", "is damaged: must be HOST:PORT"),
        ("# expires: 2", "# expires: x", "is damaged"),
        ("-----BEGIN PRIVATE KEY-----", "-----BEGIN NO KEY-----", "is damaged"),
        ("# expires: 2", "# expires: 1", "has expired on 1"),
    ],
)
def test_what_is_no_credential_is_named(credential, old: str, new: str, why: str) -> None:
    path = credential().path
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=why) as caught:
        Credential.load(path, {})
    assert "join TOKEN" in caught.value.remedy
