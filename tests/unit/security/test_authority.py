"""The cluster's authority: made once, issues to the right people, notices damage."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from dtd.address import Address
from dtd.errors import ConfigError, RequestRefused
from dtd.security import certificates
from dtd.security.authority import Authority, open_authority, open_data_key
from dtd.security.credential import Credential

HERE = (Address("10.0.0.1", 7117),)


def request() -> str:
    return certificates.request_pem(certificates.new_key()).decode()


def request_of(key: object) -> str:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return (
        builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()  # type: ignore[arg-type]
    )


def test_it_is_made_once_and_found_again(tmp_path: Path) -> None:
    made = open_authority(tmp_path / "pki")
    again = open_authority(tmp_path / "pki")
    assert (made.cluster, made.sha256) == (again.cluster, again.sha256)


def test_every_file_is_its_owners_alone(authority: Authority) -> None:
    authority.equip(HERE)
    authority.server_context()
    open_data_key(authority.directory)
    assert authority.directory.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in authority.directory.iterdir()}
    assert set(modes) == {
        *("ca.key", "ca.pem", "server.key", "server.pem", "data.key", "tokens.json"),
        *("issued.json", "operator.credential", "worker.token"),
    }
    assert set(modes.values()) == {0o600}


def test_a_certificate_says_role_and_name_and_lives_825_days(authority: Authority) -> None:
    pem = authority.issue(role="worker", name="host7", request_pem=request(), token="t")
    made = x509.load_pem_x509_certificate(pem)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert uris == [f"dtd://{authority.cluster}/worker/host7"]
    assert 824 <= (made.not_valid_after_utc - made.not_valid_before_utc).days <= 826
    assert authority.credentials.listed()[0]["name"] == "host7"
    basic = made.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert not basic.ca


@pytest.mark.parametrize(
    ("role", "name"),
    [("coordinator", "c"), ("root", "x"), ("worker", ""), ("worker", "a/b"), ("worker", "x" * 65)],
)
def test_nobody_joins_as_the_coordinator_or_under_an_odd_name(
    authority: Authority, role: str, name: str
) -> None:
    with pytest.raises(RequestRefused, match="nobody can join as"):
        authority.issue(role=role, name=name, request_pem=request(), token="t")


def test_odd_requests_are_refused(authority: Authority) -> None:
    def refused(pem: str, why: str) -> None:
        with pytest.raises(RequestRefused, match=why):
            authority.issue(role="worker", name="w", request_pem=pem, token="t")

    refused("nonsense", "cannot be read")
    refused(request_of(rsa.generate_private_key(65537, 2048)), "not EC P-256")
    refused(request_of(ec.generate_private_key(ec.SECP384R1())), "not EC P-256")
    good = x509.load_pem_x509_csr(request().encode()).public_bytes(serialization.Encoding.DER)
    forged = bytearray(good)
    forged[-1] ^= 1
    text = x509.load_der_x509_csr(bytes(forged)).public_bytes(serialization.Encoding.PEM).decode()
    refused(text, "not signed with its own key")


def test_operator_and_first_token_follow_the_address(authority: Authority) -> None:
    assert authority.equip(HERE)
    first = authority.first_token()
    elsewhere = (Address("10.0.0.2", 7117),)
    assert not authority.equip(elsewhere)
    operator = Credential.load(authority.directory / "operator.credential")
    assert (operator.role, operator.coordinators) == ("operator", elsewhere)
    second = authority.first_token()
    assert first is not None
    assert second is not None
    assert (second.id, second.secret) == (first.id, first.secret)
    assert second.coordinators == elsewhere
    authority.tokens.revoke(first.id)
    assert authority.first_token() is None
    assert not authority.equip(HERE)


def test_the_servers_certificate_is_renewed_in_good_time(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.server_context()
    path = authority.directory / "server.pem"
    first = path.read_bytes()
    authority.server_context()
    assert path.read_bytes() == first
    monkeypatch.setattr(certificates, "LIFE_DAYS", 30)
    path.unlink()
    authority.server_context()
    short = path.read_bytes()
    monkeypatch.undo()
    in_a_month_s = authority.server_expires_s()
    assert in_a_month_s < time.time() + 31 * 86400
    authority.server_context()
    assert path.read_bytes() not in (first, short)
    assert authority.server_expires_s() > in_a_month_s + 365 * 86400


@pytest.mark.parametrize(
    ("leaf", "content", "why"),
    [
        ("ca.key", None, "cannot be read"),
        ("ca.pem", None, "cannot be read"),
        ("ca.key", "x", "ca.key is no private key"),
        ("ca.pem", "x", "ca.pem is no certificate"),
        ("tokens.json", "x", "tokens.json is damaged"),
    ],
)
def test_damage_is_named_and_nothing_is_made_anew(
    authority: Authority, leaf: str, content: str | None, why: str
) -> None:
    path = authority.directory / leaf
    if content is None:
        path.unlink()
    else:
        path.touch(0o600)
        path.write_text(content)
    with pytest.raises(ConfigError, match=why):
        open_authority(authority.directory)


def test_a_key_of_another_authority_is_noticed(authority: Authority, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other")
    (authority.directory / "ca.key").write_bytes((other.directory / "ca.key").read_bytes())
    with pytest.raises(ConfigError, match="does not belong to"):
        open_authority(authority.directory)


def test_a_key_that_others_can_read_is_refused(authority: Authority) -> None:
    (authority.directory / "ca.key").chmod(0o640)
    with pytest.raises(ConfigError, match=r"can be used by others than its owner \(mode 0640\)"):
        open_authority(authority.directory)


def test_the_data_key_is_made_once_and_checked(tmp_path: Path) -> None:
    key = open_data_key(tmp_path / "pki")
    assert len(key) == 32
    assert open_data_key(tmp_path / "pki") == key
    (tmp_path / "pki" / "data.key").write_bytes(b"short")
    with pytest.raises(ConfigError, match=r"data\.key has 5 bytes, not 32"):
        open_data_key(tmp_path / "pki")
