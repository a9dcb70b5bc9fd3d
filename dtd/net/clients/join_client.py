"""Joining a cluster: exchanges a token for a credential, and renews it (protocol.md, "Joining").

First the authority's certificate is requested over unverified TLS and accepted only if its hash is
the token's; then the same coordinator is called again over TLS that trusts only this authority, and
only then is the token's secret sent. Blocking.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import hashlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from dtd.address import Address
from dtd.diagnostics import CLOCK_REMEDY
from dtd.errors import ConfigError, CoordinatorUnreachable, DtdError, ProtocolError, UsageError
from dtd.net.clients.blocking_link import BlockingLink
from dtd.net.clients.tls import times_of, tls_connect, tls_fault
from dtd.security import certificates
from dtd.security.credential import (
    Credential,
    bare_client_context,
    check_renews,
    parse_addresses,
    write_credential,
)
from dtd.security.identity import COORDINATOR, WORKER, Facts, worker_names
from dtd.security.private_files import make_private_directory, read_private, write_private
from dtd.security.token import Token
from dtd.text.names import NAME_WORDS, is_name
from dtd.text.shown import shown
from dtd.wire import messages as m

TIMEOUT_S: Final = 5.0
_KIND = TypeVar("_KIND")


def join(
    token: Token, *, name: str, path: Path, workers: tuple[str, ...] | None = None
) -> Credential:
    """Obtain a credential and write it, in place of one that is there.

    Without `workers` it is for a host's usual names.

    Raises:
        UsageError: the name is not valid.
        CoordinatorUnreachable: nothing answers at any address of the token.
        RequestRefused: the coordinator refused.
        ConfigError: another server answers, or the file cannot be written.
    """
    if not is_name(name):
        raise UsageError(f"--name: {shown(name)} is not a name", remedy=f"choose {NAME_WORDS}")
    address, authority_pem = _authority(token)
    if workers is None:
        workers = worker_names(name) if token.role == WORKER else ()
    key = pending_key(path, token.id)
    context = bare_client_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority_pem)
    request = m.Enrol(
        role=token.role,
        name=name,
        token_id=token.id,
        token_secret=token.secret,
        request_pem=certificates.request_pem(key).decode(),
        workers=",".join(workers),
    )
    enrolled = _called(address, lambda: _ask(address, context, COORDINATOR, request, m.Enrolled))
    _write_enrolled(path, request, enrolled, key, authority_pem)
    forget_pending_key(path)
    return Credential.load(path)


def _write_enrolled(
    path: Path,
    request: m.Enrol,
    enrolled: m.Enrolled,
    key: ec.EllipticCurvePrivateKey,
    authority_pem: str,
) -> None:
    certificate_pem = enrolled.certificate_pem.encode()
    write_credential(
        path,
        role=request.role,
        name=request.name,
        workers=tuple(name for name in request.workers.split(",") if name),
        coordinators=parse_addresses(enrolled.coordinators),
        key_pem=certificates.key_pem(key),
        certificate_pem=certificate_pem,
        facts=certificates.facts_of(certificate_pem),
        authority_pem=authority_pem.encode(),
    )


def _authority(token: Token) -> tuple[Address, str]:
    """The first address that answers, and the authority's certificate from it."""
    unreachable: CoordinatorUnreachable | None = None
    for address in token.coordinators:
        try:
            pem = _called(address, functools.partial(_unverified_authority, address))
        except CoordinatorUnreachable as error:
            unreachable = error
            continue
        if _sha256(pem) != token.authority_sha256:
            raise ConfigError(
                f"what answers at {address} is not the coordinator that issued the token",
                remedy="check the address and the token; another server may be impersonating it",
            )
        return address, pem
    assert unreachable is not None, "a token names at least one address"
    raise unreachable


def _unverified_authority(address: Address) -> str:
    answer = _ask(address, bare_client_context(), "", m.GetAuthority(), m.Authority)
    return answer.certificate_pem


def _ask(
    address: Address,
    context: ssl.SSLContext,
    peer_role: str,
    request: m.Message,
    kind: type[_KIND],
) -> _KIND:
    link = BlockingLink(
        address,
        role=m.Role.JOIN,
        name="join",
        timeout_s=TIMEOUT_S,
        connect=tls_connect(context, peer_role),
    )
    try:
        link.send(request)
        answer, _payload = link.receive(timeout_s=TIMEOUT_S)
    finally:
        link.close()
    assert isinstance(answer, kind), "the connection's state machine accepts nothing else"
    return answer


def _called(address: Address, call: Callable[[], _KIND]) -> _KIND:
    """Run the call and return its result; failures become sentences."""
    try:
        return call()
    except DtdError as error:
        if isinstance(error, ProtocolError):
            raise CoordinatorUnreachable(
                f"what answers at {address} does not serve joining: {error.message}",
                remedy=error.remedy,
            ) from None
        raise
    except ssl.SSLError as error:
        times = times_of(error, address, None)
        raise CoordinatorUnreachable(
            f"no TLS connection to {address}: {tls_fault(error)}{f' ({times})' if times else ''}",
            remedy=CLOCK_REMEDY if times else "check that the coordinator listens there",
        ) from None
    except OSError as error:
        raise CoordinatorUnreachable(
            f"the coordinator's address {address} cannot be reached: {error.strerror or error}",
            remedy="check that it is running and that its port is open to this host",
        ) from None


def _sha256(pem: str) -> str:
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    except ValueError:
        return ""


# --- the key of a host that is joining, kept until its certificate is here -----------------------
#
# A token can be used once.  If the answer is lost (power, network), the host asks again with the
# same key, by which the coordinator recognises it.  The key is stored beside the credential.


def pending_key(credential: Path, token_id: str) -> ec.EllipticCurvePrivateKey:
    """The key with which this token was used before, or a new one.

    Raises:
        ConfigError: it cannot be written.
    """
    path = _place(credential)
    first_line = f"# joining with the token {token_id}\n".encode()
    if path.exists():
        try:
            content = read_private(path)
            key = load_pem_private_key(content, None)
        except (ConfigError, ValueError, TypeError):
            content, key = b"", None
        if content.startswith(first_line) and isinstance(key, ec.EllipticCurvePrivateKey):
            return key
    made = certificates.new_key()
    make_private_directory(path.parent)
    write_private(path, first_line + certificates.key_pem(made))
    return made


def forget_pending_key(credential: Path) -> None:
    """Delete the key: the certificate has arrived, or never will."""
    _place(credential).unlink(missing_ok=True)


def _place(credential: Path) -> Path:
    return credential.with_name(f".{credential.name}.joining")


# --- the answer to RENEW becomes a credential: verified, then written atomically -----------------


def write_renewed(
    credential: Credential,
    key: ec.EllipticCurvePrivateKey,
    answer: m.Renewed,
    path: Path,
    *,
    now: dt.datetime,
) -> Credential:
    """Write a renewed certificate.

    In place of the credential's file the coordinator's present addresses are written with it.

    Raises:
        ConfigError: the certificate does not match the key, the time or the credential, or cannot
            be written.
    """
    pem = answer.certificate_pem.encode()
    facts = _facts_of_renewed(pem, key, now)
    made = dataclasses.replace(
        credential, key_path=path, serial=facts.serial, issued=facts.issued, expires=facts.expires
    )
    check_renews(credential, answer.certificate_pem, "the new certificate")
    if path == credential.path:
        made = dataclasses.replace(made, coordinators=parse_addresses(answer.coordinators))
    write_credential(
        path,
        role=made.role,
        name=made.name,
        workers=made.workers,
        coordinators=made.coordinators,
        key_pem=certificates.key_pem(key),
        certificate_pem=pem,
        facts=facts,
        authority_pem=made.authority_pem.encode(),
    )
    return made


def _facts_of_renewed(pem: bytes, key: ec.EllipticCurvePrivateKey, now: dt.datetime) -> Facts:
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        facts = certificates.facts_of(pem)
    except ValueError:
        raise ConfigError("the answer is not a certificate") from None
    if certificate.public_key() != key.public_key():
        raise ConfigError("the answer is not a certificate for the key of this host")
    if facts.expires <= now:
        raise ConfigError(
            f"the new certificate ends on {facts.expires:%Y-%m-%d %H:%M} UTC, and this host's clock"
            f" shows {now:%Y-%m-%d %H:%M}",
            remedy=CLOCK_REMEDY,
        )
    return facts
