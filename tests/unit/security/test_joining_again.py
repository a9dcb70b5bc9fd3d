"""A second request with a token and the same key: a lost answer, or an intruder."""

from __future__ import annotations

import pytest
from cryptography import x509

from dtd.address import Address
from dtd.errors import RequestRefused
from dtd.security import admission, certificates
from dtd.security.admission import MAX_RENEWED
from dtd.security.authority import Authority, Enrolment
from dtd.security.token import Token

HERE = (Address("10.0.0.1", 7117),)


def request() -> str:
    return certificates.request_pem(certificates.new_key()).decode()


def token_of(authority: Authority) -> Token:
    return authority.create_token("worker", life_s=86400, coordinators=HERE)[0]


def joins(authority: Authority, token: Token, pem: str, name: str = "host7") -> str:
    """The serial of what is handed out."""
    wanted = Enrolment(role="worker", name=name, workers=(name,), request_pem=pem)
    made = admission.admit(authority, wanted, token.id, token.secret).certificate_pem
    return f"{x509.load_pem_x509_certificate(made).serial_number:x}"


def test_a_caller_that_was_revoked_does_not_come_back_with_its_old_token(
    authority: Authority,
) -> None:
    token, pem = token_of(authority), request()
    joins(authority, token, pem)
    authority.credentials.revoke("host7", now_s=authority.now_s())
    with pytest.raises(RequestRefused, match="was revoked"):
        joins(authority, token, pem)
    with pytest.raises(RequestRefused, match="was revoked"):
        joins(Authority(authority.directory), token, pem)
    assert authority.credentials.living(now_s=authority.now_s()) == []


def test_a_token_that_is_used_hands_out_only_so_much(authority: Authority) -> None:
    """Else whoever has joined once fills the list of certificates, and nobody joins or renews."""
    token, pem = token_of(authority), request()
    for _ in range(MAX_RENEWED + 2):
        joins(authority, token, pem)
    with pytest.raises(RequestRefused, match="of its certificates are valid"):
        joins(authority, token, pem)
