"""The X.509 certificates of a cluster: their content and signatures.

EC P-256 throughout.  The authority's own lives ten years, others as long as given.  The identity
is in URIs (`dtd.security.identity`); host names play no part, since addresses of machines
change and roles do not.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dtd.errors import RequestRefused
from dtd.security import identity
from dtd.security.identity import Facts

AUTHORITY_LIFE_DAYS: Final = 3650
CLOCK_SKEW: Final = dt.timedelta(hours=1)

_SERVES: Final = frozenset({identity.COORDINATOR, identity.WORKER})
_CALLS: Final = frozenset({identity.WORKER, identity.OPERATOR, identity.VIEWER})


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as PKCS8, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """A certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def sha256_hex(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate's DER form, by which a token identifies the authority."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def facts_of(pem: bytes) -> Facts:
    """Return a member's certificate's facts about the credential that it belongs to.

    Raises:
        ValueError: it is not a member's certificate.
    """
    certificate = x509.load_pem_x509_certificate(pem)
    issued_s, expires_s = life_of(certificate)
    return Facts(
        serial=f"{certificate.serial_number:x}",
        credential=_credential_of(certificate),
        issued=dt.datetime.fromtimestamp(issued_s, dt.UTC),
        expires=dt.datetime.fromtimestamp(expires_s, dt.UTC),
    )


def is_signed_by(certificate: x509.Certificate, authorities: Iterable[x509.Certificate]) -> bool:
    """Whether one of these authorities has signed the certificate; its life is not looked at."""
    for authority in authorities:
        with contextlib.suppress(ValueError, TypeError, InvalidSignature):
            certificate.verify_directly_issued_by(authority)
            return True
    return False


def uris_of(certificate: x509.Certificate) -> list[str]:
    """The URIs that name a member, a worker's names, and the credential.

    Raises:
        ValueError: it is not a member's certificate.
    """
    try:
        kind = x509.SubjectAlternativeName
        names = certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        raise ValueError("the certificate names no member of a dtd cluster") from None
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _credential_of(certificate: x509.Certificate) -> str:
    for uri in uris_of(certificate):
        _dtd, slash, rest = uri.partition("/credential/")
        if slash:
            return str(rest)
    return f"{certificate.serial_number:x}"


def key_sha256(key: ec.EllipticCurvePublicKey) -> str:
    """Return the hash that identifies a public key."""
    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()


def life_of(certificate: x509.Certificate) -> tuple[float, float]:
    """Return when a certificate was issued, and when it ends, in Unix seconds."""
    issued = certificate.not_valid_before_utc + CLOCK_SKEW
    return issued.timestamp(), certificate.not_valid_after_utc.timestamp()


def request_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A request for a certificate for the key; it has no name, which is the coordinator's part."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def requested_key(pem: str) -> ec.EllipticCurvePublicKey:
    """The public key of a request that proves possession of the private one.

    Raises:
        RequestRefused: it is no such request.
    """
    try:
        request = x509.load_pem_x509_csr(pem.encode())
        key = request.public_key()
        genuine = request.is_signature_valid
    except Exception as error:  # noqa: BLE001 - a library that parses what a stranger has sent
        why = f"the request for a certificate cannot be read: {type(error).__name__}"
        raise RequestRefused(why) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise RequestRefused("the key of the request is not EC P-256")
    if not genuine:
        raise RequestRefused("the request is not signed with its own key")
    return key


def authority_certificate(
    key: ec.EllipticCurvePrivateKey, cluster: str, now: dt.datetime
) -> x509.Certificate:
    """The authority's own certificate; it can sign others, but no further authorities."""
    name = _subject(f"dtd cluster {cluster}")
    return (
        _builder(now, AUTHORITY_LIFE_DAYS, dt.datetime.max.replace(tzinfo=dt.UTC))
        .serial_number(x509.random_serial_number())
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def member_certificate(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePublicKey,
    *,
    uris: Sequence[str],
    role: str,
    serial: int,
    now: dt.datetime,
    life_days: float,
) -> x509.Certificate:
    """A certificate that names the key's holder; the first URI is the holder's.

    It does not outlive the authority.
    """
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    usages = [ExtendedKeyUsageOID.SERVER_AUTH] if role in _SERVES else []
    usages += [ExtendedKeyUsageOID.CLIENT_AUTH] if role in _CALLS else []
    alternative = x509.SubjectAlternativeName(list(map(x509.UniformResourceIdentifier, uris)))
    return (
        _builder(now, life_days, authority.not_valid_after_utc)
        .serial_number(serial)
        .subject_name(_subject(uris[0].removeprefix("dtd://").partition("/")[2]))
        .issuer_name(authority.subject)
        .public_key(key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=True)
        .add_extension(alternative, critical=False)
        .add_extension(issuer_key, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _subject(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _builder(now: dt.datetime, life_days: float, latest: dt.datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(min(now + dt.timedelta(days=life_days), latest))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
