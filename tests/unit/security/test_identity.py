"""Who a certificate or the kernel says somebody is."""

from __future__ import annotations

import pytest

from dtd.errors import ErrorCode, ProtocolError
from dtd.security import identity

CLUSTER = "0123456789abcdef" * 2


def certificate(*uris: str) -> dict:
    return {"subjectAltName": [("URI", uri) for uri in uris], "serialNumber": "0A1B"}


def test_a_certificate_names_its_holder() -> None:
    uri = identity.identity_uri(CLUSTER, "worker", "host7")
    assert identity.of_certificate(certificate(uri)) == identity.Identity(
        role="worker", name="host7", serial="a1b", where="certificate", cluster=CLUSTER
    )


@pytest.mark.parametrize("nothing", [None, {}])
def test_without_a_certificate_one_is_a_stranger(nothing: dict | None) -> None:
    assert identity.of_certificate(nothing).role == identity.STRANGER


@pytest.mark.parametrize(
    "uris",
    [
        (),
        (f"dtd://{CLUSTER}/worker/a", f"dtd://{CLUSTER}/operator/a"),
        (f"dtd://{CLUSTER}/root/a",),
        (f"dtd://{CLUSTER}/worker/a/b",),
        ("dtd://short/worker/a",),
        (f"https://{CLUSTER}/worker/a",),
    ],
)
def test_an_odd_certificate_names_nobody(uris: tuple[str, ...]) -> None:
    with pytest.raises(ProtocolError, match="names no member of a dtd cluster") as caught:
        identity.of_certificate(certificate(*uris))
    assert caught.value.code == ErrorCode.REFUSED


@pytest.mark.parametrize(
    ("uid", "role", "name"),
    [
        (1000, "local", "uid 1000"),
        (0, "local", "uid 0"),
        (1001, "stranger", "uid 1001"),
        (None, "stranger", "a caller unknown to the kernel"),
    ],
)
def test_on_loopback_the_own_user_and_root_are_local(uid: int | None, role: str, name: str) -> None:
    who = identity.of_user(uid, own_uid=1000)
    assert (who.role, who.name) == (role, name)


def test_the_role_of_the_other_side_is_checked() -> None:
    who = identity.of_certificate(certificate(f"dtd://{CLUSTER}/worker/a"))
    identity.check_role(who, "worker")
    identity.check_role(who, "")
    with pytest.raises(ProtocolError, match="a coordinator was called, but worker/a answers"):
        identity.check_role(who, "coordinator")
