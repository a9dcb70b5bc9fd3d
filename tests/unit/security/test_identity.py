"""Identities according to a certificate or the kernel."""

from __future__ import annotations

import hashlib

import pytest

from dtd.errors import ErrorCode, ProtocolError, RequestRefused
from dtd.security import identity
from dtd.security.identity import check_names

CLUSTER = "0123456789abcdef" * 2


def certificate(*uris: str) -> dict:
    return {
        "subjectAltName": [("URI", uri) for uri in uris],
        "serialNumber": "0A1B",
        "notBefore": "Jan  1 00:00:00 2026 GMT",
        "notAfter": "Jan 31 00:00:00 2026 GMT",
    }


def test_a_certificate_names_its_holder() -> None:
    uri = identity.identity_uri(CLUSTER, "worker", "host7")
    registers = [identity.registers_uri(CLUSTER, name) for name in ("host7", "host7-cpu")]
    first = identity.credential_uri(CLUSTER, "ab12")
    assert identity.of_certificate(
        certificate(uri, *registers, first), b"der"
    ) == identity.Identity(
        role="worker",
        name="host7",
        serial="a1b",
        where="certificate",
        workers=("host7", "host7-cpu"),
        credential="ab12",
        issued_s=1767225600.0,
        expires_s=1767225600.0 + 30 * 86400,
        fingerprint=hashlib.sha256(b"der").hexdigest(),
    )


@pytest.mark.parametrize("nothing", [None, {}])
def test_without_a_certificate_one_is_a_stranger(nothing: dict | None) -> None:
    assert identity.of_certificate(nothing, None).role == identity.STRANGER


@pytest.mark.parametrize(
    "uris",
    [
        (),
        (f"dtd://{CLUSTER}/worker/a", f"dtd://{CLUSTER}/operator/a"),
        (f"dtd://{CLUSTER}/root/a",),
        (f"dtd://{CLUSTER}/registers/a",),
        (f"dtd://{CLUSTER}/worker/a", f"dtd://{CLUSTER}/registers/a/b"),
        (f"dtd://{CLUSTER}/worker/a", "dtd://x/credential/1", "dtd://x/credential/2"),
        (f"dtd://{CLUSTER}/worker/a/b",),
        ("dtd://short/worker/a",),
        (f"https://{CLUSTER}/worker/a",),
    ],
)
def test_an_odd_certificate_names_nobody(uris: tuple[str, ...]) -> None:
    with pytest.raises(ProtocolError, match="names no member of a dtd cluster") as caught:
        identity.of_certificate(certificate(*uris), b"der")
    assert caught.value.code == ErrorCode.REFUSED


# --- names that a host can ask for ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["host70", "host", "other", "host7-", "host7-a/b", "host7" * 20])
def test_names_of_others_are_refused(name: str) -> None:
    with pytest.raises(RequestRefused, match="host7 cannot be given the name"):
        check_names("host7", ("host7", name))
