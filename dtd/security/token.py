"""The token that lets a host or a person join: one shell word, good for one role.

    dtd1/ROLE/HOST:PORT[,HOST:PORT...]/CA_SHA256/ID.SECRET

It says where the coordinator is and how to know it (the hash of the authority's certificate), so
that nothing else has to be copied.  The coordinator keeps a hash of the secret only.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from typing import Final, Self

from dtd.address import Address
from dtd.errors import UsageError
from dtd.security.identity import JOINABLE

VERSION: Final = "dtd1"
ID_BYTES: Final = 4
SECRET_BYTES: Final = 24
MAX_ADDRESSES: Final = 16
DEFAULT_LIFE_S: Final = 24 * 3600
NEVER: Final = "never"
LIMIT_CHARACTERS: Final = 4096

_ID: Final = re.compile(rf"[0-9a-f]{{{2 * ID_BYTES}}}")
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_LIFE: Final = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_REMEDY: Final = "copy the whole token that `dtdctl token create` printed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The content of a token; its secret is not shown."""

    role: str
    coordinators: tuple[Address, ...]
    authority_sha256: str
    id: str
    secret: str = field(repr=False)

    @classmethod
    def make(cls, *, role: str, coordinators: tuple[Address, ...], authority_sha256: str) -> Self:
        """A new one with a secret of its own."""
        return cls(
            role=role,
            coordinators=coordinators,
            authority_sha256=authority_sha256,
            id=secrets.token_hex(ID_BYTES),
            secret=secrets.token_urlsafe(SECRET_BYTES),
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one.

        Raises:
            UsageError: it is no token; the message does not repeat it.
        """
        parts = text.strip().split("/") if len(text) <= LIMIT_CHARACTERS else []
        if len(parts) != 5:
            raise _no_token("it does not have the five parts of a token")
        version, role, hosts, sha256, last = parts
        token_id, _, secret = last.partition(".")
        if version != VERSION:
            raise _no_token(f"it does not begin with {VERSION}/")
        if role not in JOINABLE:
            raise _no_token(f"its role is not one of {', '.join(JOINABLE)}")
        if not _SHA256.fullmatch(sha256):
            raise _no_token("its fourth part is not a SHA-256")
        if not _ID.fullmatch(token_id) or not _SECRET.fullmatch(secret):
            raise _no_token("its last part is not ID.SECRET")
        return cls(
            role=role,
            coordinators=_addresses(hosts),
            authority_sha256=sha256,
            id=token_id,
            secret=secret,
        )

    def word(self) -> str:
        """The token as it is handed over; it contains the secret."""
        hosts = ",".join(map(str, self.coordinators))
        return f"{VERSION}/{self.role}/{hosts}/{self.authority_sha256}/{self.id}.{self.secret}"


def secret_sha256(secret: str) -> str:
    """Return the stored hash of a secret.  It is random and long, so a plain hash will do."""
    return hashlib.sha256(secret.encode()).hexdigest()


def parse_life_s(text: str) -> int:
    """Seconds of "90s", "30m", "24h" or "7d"; 0 for "never".

    Raises:
        UsageError: it is none of these.
    """
    if text == NEVER:
        return 0
    found = _LIFE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"{text[:20]!r} is not a duration",
            remedy=f"for example 90s, 30m, 24h, 7d or {NEVER}",
        )
    return int(found[1]) * _UNIT_S[found[2]]


def _addresses(text: str) -> tuple[Address, ...]:
    words = text.split(",")
    if len(words) > MAX_ADDRESSES:
        raise _no_token(f"it names more than {MAX_ADDRESSES} addresses")
    try:
        found = tuple(map(Address.parse, words))
    except UsageError as error:
        raise _no_token(f"its address {error.message}") from None
    if any(address.port == 0 for address in found):
        raise _no_token("one of its addresses has no port")
    return found


def _no_token(why: str) -> UsageError:
    return UsageError(f"this is not a token: {why}", remedy=_REMEDY)
