"""Joining a cluster: a token becomes a credential (protocol.md, "Joining").

First the authority is asked for over TLS that trusts nobody, and is believed only if its hash is
the token's; then the same coordinator is called again, over TLS that trusts this authority alone,
and only now the token's secret leaves this host.  Blocking.
"""

from __future__ import annotations

import functools
import hashlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from dtd.address import Address
from dtd.errors import ConfigError, CoordinatorUnreachable, DtdError, ProtocolError, UsageError
from dtd.names import NAME_WORDS, is_name
from dtd.net.blocking_link import BlockingLink
from dtd.net.tls_connect import tls_connect
from dtd.security import certificates
from dtd.security.credential import (
    Credential,
    bare_client_context,
    parse_addresses,
    write_credential,
)
from dtd.security.identity import COORDINATOR, WORKER
from dtd.security.pending_key import forget_pending_key, pending_key
from dtd.security.tls_faults import tls_fault
from dtd.security.token import Token
from dtd.security.worker_names import worker_names
from dtd.shown import shown
from dtd.wire import messages as m

TIMEOUT_S: Final = 5.0
_KIND = TypeVar("_KIND")


def join(
    token: Token, *, name: str, path: Path, workers: tuple[str, ...] | None = None
) -> Credential:
    """Get a credential and write it.

    Args:
        token: what the operator has given.
        name: who to be.
        path: where the credential goes; one that is there is replaced.
        workers: the names that a worker's is to be good for; None: the usual ones of a host.

    Raises:
        UsageError: nobody can be called so.
        CoordinatorUnreachable: nobody answers at any address of the token.
        RequestRefused: the coordinator said no.
        ConfigError: somebody else answers, or the file cannot be written.
    """
    if not is_name(name):
        raise UsageError(f"--name: {shown(name)} is no name", remedy=f"choose {NAME_WORDS}")
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
    certificate_pem = enrolled.certificate_pem.encode()
    write_credential(
        path,
        role=token.role,
        name=name,
        workers=workers,
        coordinators=parse_addresses(enrolled.coordinators),
        key_pem=certificates.key_pem(key),
        certificate_pem=certificate_pem,
        facts=certificates.facts_of(certificate_pem),
        authority_pem=authority_pem.encode(),
    )
    forget_pending_key(path)
    return Credential.load(path)


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
                f"what answers at {address} is not the coordinator that the token is from",
                remedy="check the address and the token; somebody may be posing as it",
            )
        return address, pem
    assert unreachable is not None, "a token names one address at least"
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
    assert isinstance(answer, kind), "the connection's state machine lets nothing else pass"
    return answer


def _called(address: Address, call: Callable[[], _KIND]) -> _KIND:
    """What the call returns; every failure below the protocol becomes a sentence."""
    try:
        return call()
    except DtdError as error:
        if isinstance(error, ProtocolError):
            raise CoordinatorUnreachable(
                f"what answers at {address} does not let anybody join: {error.message}",
                remedy=error.remedy,
            ) from None
        raise
    except ssl.SSLError as error:
        raise CoordinatorUnreachable(
            f"no TLS connection to {address}: {tls_fault(error)}",
            remedy="check that it is the coordinator who listens there",
        ) from None
    except OSError as error:
        raise CoordinatorUnreachable(
            f"the coordinator's address {address} cannot be reached: {error.strerror or error}",
            remedy="check that it runs, and that its port is open to this host",
        ) from None


def _sha256(pem: str) -> str:
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    except ValueError:
        return ""
