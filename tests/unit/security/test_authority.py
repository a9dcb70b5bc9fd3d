"""The cluster's authority: made once, issues to the right people, notices damage."""

from __future__ import annotations

import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from dtd.address import Address
from dtd.errors import ConfigError, RequestRefused
from dtd.security import admission, certificates
from dtd.security.admission import Admitted
from dtd.security.authority import Authority, Enrolment, open_authority
from dtd.security.identity import Identity
from dtd.security.token import Token

HERE = (Address("10.0.0.1", 7117),)


def request() -> str:
    return certificates.request_pem(certificates.new_key()).decode()


def request_of(key: object) -> str:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return (
        builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()  # type: ignore[arg-type]
    )


def admit(
    authority: Authority,
    role: str = "worker",
    name: str = "host7",
    *,
    pem: str = "",
    workers: tuple[str, ...] = (),
    token: Token | None = None,
    **more: object,
) -> Admitted:
    if token is None:
        joinable = role if role in ("worker", "operator", "viewer") else "worker"
        given = {"life_s": 60, "coordinators": HERE, **more}
        token, _ = authority.create_token(joinable, **given)  # type: ignore[arg-type]
    wanted = Enrolment(role=role, name=name, workers=workers, request_pem=pem or request())
    return admission.admit(authority, wanted, token.id, token.secret)


def uris_of(pem: bytes) -> list[str]:
    names = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    return names.value.get_values_for_type(x509.UniformResourceIdentifier)


def test_a_certificate_says_role_and_name_and_lives_30_days(authority: Authority) -> None:
    pem = admit(authority, workers=("host7", "host7-cpu")).certificate_pem
    made = x509.load_pem_x509_certificate(pem)
    cluster = f"dtd://{authority.cluster}"
    assert uris_of(pem) == [
        f"{cluster}/worker/host7",
        f"{cluster}/registers/host7",
        f"{cluster}/registers/host7-cpu",
        f"{cluster}/credential/{made.serial_number:x}",
    ]
    assert 29 <= (made.not_valid_after_utc - made.not_valid_before_utc).days <= 30
    assert authority.credentials.listed(now_s=time.time())[0]["name"] == "host7"
    basic = made.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert not basic.ca


@pytest.mark.parametrize(
    ("role", "name"),
    [("coordinator", "c"), ("root", "x"), ("worker", ""), ("worker", "a/b"), ("worker", "x" * 65)],
)
def test_nobody_joins_as_the_coordinator_or_under_an_odd_name(
    authority: Authority, role: str, name: str
) -> None:
    with pytest.raises(RequestRefused, match="joining is not possible as"):
        admit(authority, role, name)
    assert authority.tokens.listed(now_s=0.0)[0]["used"] == []


def test_odd_requests_are_refused(authority: Authority) -> None:
    def refused(pem: str, why: str) -> None:
        with pytest.raises(RequestRefused, match=why):
            admit(authority, pem=pem)

    refused("nonsense", "cannot be read")
    refused(request_of(rsa.generate_private_key(65537, 2048)), "not EC P-256")
    refused(request_of(ec.generate_private_key(ec.SECP384R1())), "not EC P-256")
    good = x509.load_pem_x509_csr(request().encode()).public_bytes(serialization.Encoding.DER)
    forged = bytearray(good)
    forged[-1] ^= 1
    text = x509.load_der_x509_csr(bytes(forged)).public_bytes(serialization.Encoding.PEM).decode()
    refused(text, "not signed with its own key")


def passes(authority: Authority, days: float) -> None:
    """Let so many days pass for an authority."""
    before = authority.now_s
    authority.now_s = lambda: before() + days * 86400.0  # type: ignore[method-assign]


def test_the_servers_certificate_and_the_operators_are_renewed_in_good_time(
    authority: Authority,
) -> None:
    files = [authority.directory / leaf for leaf in ("server.pem", "operator.credential")]
    authority.equip(HERE)
    authority.server_context()
    first = [path.read_bytes() for path in files]
    passes(authority, 19.9)
    assert not authority.own_are_due()
    authority.equip(HERE)
    assert not authority.renew_server()
    assert [path.read_bytes() for path in files] == first
    passes(authority, 0.2)
    assert authority.own_are_due()
    authority.equip(HERE)
    assert authority.renew_server()
    assert not authority.own_are_due()
    assert all(path.read_bytes() != old for path, old in zip(files, first, strict=True))
    assert authority.server_expires_s() > time.time() + 49 * 86400


def identity_of(pem: bytes, authority: Authority) -> Identity:
    made = x509.load_pem_x509_certificate(pem)
    issued_s, expires_s = certificates.life_of(made)
    (name,) = [one for one in uris_of(pem) if "/worker/" in one]
    (credential,) = [one for one in uris_of(pem) if "/credential/" in one]
    return Identity(
        role="worker",
        name=name.rpartition("/")[2],
        serial=f"{made.serial_number:x}",
        where="certificate",
        workers=tuple(one.rpartition("/")[2] for one in uris_of(pem) if "/registers/" in one),
        credential=credential.rpartition("/")[2],
        issued_s=issued_s,
        expires_s=expires_s,
        fingerprint=made.fingerprint(hashes.SHA256()).hex(),
    )


def test_a_certificate_is_renewed_once_two_thirds_of_its_life_are_over(
    authority: Authority,
) -> None:
    first = identity_of(admit(authority, workers=("host7", "host7-cpu")).certificate_pem, authority)
    early = admission.renew(authority, first, request())
    assert not early.certificate_pem
    assert early.reason.startswith("it can be renewed from 20")
    passes(authority, 20.1)
    renewed = admission.renew(authority, first, request())
    second = identity_of(renewed.certificate_pem.encode(), authority)
    assert (second.workers, second.credential) == (first.workers, first.serial)
    assert second.serial != first.serial
    assert authority.standing(first) == authority.standing(second) == ("", "")
    assert not authority.is_due(second)
    passes(authority, 10)
    assert "has expired" in authority.standing(first)[0]
    with pytest.raises(RequestRefused, match="has expired"):
        admission.renew(authority, first, request())
    authority.credentials.revoke("host7", now_s=authority.now_s())
    with pytest.raises(RequestRefused, match="is revoked"):
        admission.renew(authority, second, request())


@pytest.mark.parametrize(
    ("leaf", "content", "why"),
    [
        ("ca.key", None, "cannot be read"),
        ("ca.pem", None, "cannot be read"),
        ("ca.key", "x", "ca.key is not a private key"),
        ("ca.pem", "x", "ca.pem is not a certificate"),
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
