"""Files for the coordinator's own host: server certificate, operator's credential, first token.

All are files of the `pki` directory, made when they are not there and again when it is time.  Used
by `dtd.security.authority`.
"""

from __future__ import annotations

import dataclasses
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives import hashes

from dtd.address import Address
from dtd.errors import UsageError
from dtd.security import certificates, identity
from dtd.security.admission import Enrolment
from dtd.security.credential import server_context
from dtd.security.private_files import read_private, write_private
from dtd.security.signer import damaged, load_certificate
from dtd.security.token import DEFAULT_LIFE_S, Token

if TYPE_CHECKING:
    from dtd.security.authority import Authority

SERVER_FILE: Final = "server.pem"
OPERATOR_FILE: Final = "operator.credential"
FIRST_TOKEN_FILE: Final = "worker.token"  # noqa: S105 - a file's name
OPERATOR_NAME: Final = "operator"
COORDINATOR_NAME: Final = "coordinator"


class OwnCertificates:
    """The coordinator's own certificate, and the credentials for its host's users.

    Args:
        authority: issues them.
    """

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._good_s: dict[str, tuple[float, float]] = {}

    def are_due(self) -> bool:
        """Whether it is time to renew the server's certificate, or the operator's credential."""
        now_s, good = self._authority.now_s(), self._good_s.values()
        return not good or not all(begin_s <= now_s < end_s for begin_s, end_s in good)

    def server_expires_s(self) -> float:
        """Unix time at which the coordinator's own certificate ends."""
        served = load_certificate(self._authority.directory / SERVER_FILE)
        return served.not_valid_after_utc.timestamp()

    def server_sha256(self) -> str:
        """Fingerprint of the coordinator's own certificate, as browsers show it."""
        served = load_certificate(self._authority.directory / SERVER_FILE)
        return served.fingerprint(hashes.SHA256()).hex()

    def server_context(self) -> ssl.SSLContext:
        """TLS for the control port: callers may show a certificate, and then it must be ours.

        A certificate that is there is not renewed here: any thread may ask, and a renewal has to
        reach the control port.

        Raises:
            ConfigError: the server's certificate cannot be read or written.
        """
        if not self._has_server():
            self.renew_server()
        context = server_context()
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=self._authority.certificate_pem.decode())
        try:
            context.load_cert_chain(self._authority.directory / SERVER_FILE)
        except (OSError, ssl.SSLError) as error:
            raise damaged(self._authority.directory, f"{SERVER_FILE}: {error}") from None
        return context

    def renew_server(self) -> bool:
        """Make the coordinator's own certificate if it is time; returns whether it was.

        Key and certificate are one file, so that they fit one another whatever happens.

        Raises:
            ConfigError: it cannot be read or written.
        """
        path = self._authority.directory / SERVER_FILE
        if self._has_server() and not self._own_is_due(path):
            return False
        key = certificates.new_key()
        own = Enrolment(role=identity.COORDINATOR, name=COORDINATOR_NAME)
        made = self._authority.signed(key.public_key(), own)
        write_private(path, certificates.key_pem(key) + certificates.certificate_pem(made))
        self._own_is_due(path)
        return True

    def _has_server(self) -> bool:
        """Whether there is a certificate of the coordinator's, with its key."""
        path = self._authority.directory / SERVER_FILE
        return path.exists() and b"PRIVATE KEY" in read_private(path)

    def _own_is_due(self, path: Path) -> bool:
        """Whether to make anew what is in this file; remembers while it need not.

        It is also when members could not accept it: it counts from a later time on, since the
        clock was ahead, or was issued by an authority that is no longer here.
        """
        served = load_certificate(path)
        begin_s = served.not_valid_before_utc.timestamp()
        from_s = self._authority.renewed_from_s(*certificates.life_of(served))
        if not certificates.is_signed_by(served, [self._authority.signer.certificate]):
            from_s = begin_s
        self._good_s[path.name] = begin_s, from_s
        return not begin_s <= self._authority.now_s() < from_s

    def equip(self, coordinators: tuple[Address, ...]) -> bool:
        """Make a credential for this host's operator, and a first token for workers, if missing.

        Both state where the coordinator is, so they follow when that changes.

        Returns:
            whether the first token is new.

        Raises:
            ConfigError: a file cannot be written.
        """
        self._equip_operator(coordinators)
        path = self._authority.directory / FIRST_TOKEN_FILE
        if path.exists():
            token = dataclasses.replace(_read_token(path), coordinators=coordinators)
            if token != _read_token(path):
                write_private(path, token.word().encode() + b"\n")
            return False
        token, _expires_s = self._authority.admission.create_token(
            identity.WORKER, life_s=DEFAULT_LIFE_S, coordinators=coordinators
        )
        write_private(path, token.word().encode() + b"\n")
        return True

    def _equip_operator(self, coordinators: tuple[Address, ...]) -> None:
        """The operator's credential of this host is made anew when it is time."""
        path = self._authority.directory / OPERATOR_FILE
        line = f"# coordinator: {','.join(map(str, coordinators))}"
        if path.exists():
            text = read_private(path).decode()
            lines = [line if one.startswith("# coordinator:") else one for one in text.split("\n")]
            if "\n".join(lines) != text:
                write_private(path, "\n".join(lines).encode())
            if not self._own_is_due(path):
                return
        self._authority.enrol(
            path, identity.OPERATOR, OPERATOR_NAME, coordinators=coordinators, renews=path.exists()
        )
        self._own_is_due(path)

    def first_token(self) -> Token | None:
        """The first worker token while it is valid."""
        path = self._authority.directory / FIRST_TOKEN_FILE
        if not path.exists():
            return None
        token = _read_token(path)
        return (
            token
            if self._authority.tokens.is_valid(token.id, now_s=self._authority.now_s())
            else None
        )


def _read_token(path: Path) -> Token:
    try:
        return Token.parse(read_private(path).decode())
    except (UsageError, UnicodeDecodeError) as error:
        raise damaged(path.parent, f"{path.name}: {error}") from None
