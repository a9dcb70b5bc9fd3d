"""The token that lets a host or a person join, and the book of those that were given out.

    dtd1/ROLE/HOST:PORT[,HOST:PORT...]/CA_SHA256/ID.SECRET

One shell word, good for one role.  It says where the coordinator is and how to know it (the hash of
the authority's certificate), so that nothing else has to be copied.

The coordinator keeps the book in one file, `tokens.json`, with a hash of each secret.  A token is
good for so many uses, once unless it was made for more, and perhaps for certain names alone, each
once.  A use is on disk before a joiner gets a certificate for it; a repeated request with the same
key counts once: its answer got lost.  The book blocks; one caller at a time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from dtd.address import Address
from dtd.errors import ConfigError, RequestRefused, UsageError
from dtd.security.identity import JOINABLE
from dtd.security.private_files import read_records, write_records

VERSION: Final = "dtd1"
ID_BYTES: Final = 4
SECRET_BYTES: Final = 24
DEFAULT_LIFE_S: Final = 24 * 3600
NEVER: Final = "never"

_TOKEN: Final = re.compile(
    rf"{VERSION}/(?P<role>{'|'.join(JOINABLE)})/(?P<hosts>[^/]+)/(?P<sha256>[0-9a-f]{{64}})"
    rf"/(?P<id>[0-9a-f]{{{2 * ID_BYTES}}})\.(?P<secret>[A-Za-z0-9_-]{{16,64}})"
)
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
        if not text.strip():
            raise UsageError(
                "the token is empty",
                remedy="fill the file, Secret or variable that it is taken from with what"
                " `dtdctl token create` prints",
            )
        found = _TOKEN.fullmatch(text.strip())
        if found is None:
            raise _no_token(f"it is not {VERSION}/ROLE/HOST:PORT,.../SHA256/ID.SECRET")
        try:
            coordinators = tuple(map(Address.parse, found["hosts"].split(",")))
        except UsageError as error:
            raise _no_token(f"its address {error.message}") from None
        return cls(
            role=found["role"],
            coordinators=coordinators,
            authority_sha256=found["sha256"],
            id=found["id"],
            secret=found["secret"],
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


def _no_token(why: str) -> UsageError:
    return UsageError(f"this is not a token: {why}", remedy=_REMEDY)


TOKENS_FILE: Final = "tokens.json"
MAX_TOKENS: Final = 256
MAX_USES: Final = 256
_NEW_REMEDY: Final = "ask the operator for a new one: `dtdctl token create`"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """The stored record of a token; times are Unix seconds.

    Attributes:
        expires_s: when it ends; 0: never.
        names: those that can join with it, each once; empty: any.
        replaces: a living credential of the name gives way.
        used: those that have joined with it, by name and key ("NAME SHA256").
    """

    id: str
    role: str
    secret_sha256: str
    created_s: float
    expires_s: float
    uses: int = 1
    names: tuple[str, ...] = ()
    replaces: bool = False
    used: tuple[str, ...] = ()


class TokenBook:
    """All tokens that are not revoked.

    Raises:
        ConfigError: the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            found = [_record(record) for record in read_records(path)]
        except TypeError as error:
            raise ConfigError(f"{path} is damaged: {error}") from None
        self._records = {record.id: record for record in found}

    def add(
        self,
        token: Token,
        *,
        life_s: int,
        now_s: float,
        uses: int = 1,
        names: tuple[str, ...] = (),
        replaces: bool = False,
    ) -> TokenRecord:
        """Remember a new token; the oldest that is over makes room.

        Raises:
            RequestRefused: too many tokens are valid, or it would be good too often.
        """
        if not 1 <= uses <= MAX_USES or len(names) > MAX_USES:
            raise RequestRefused(f"a token allows 1 to {MAX_USES} uses, not {uses}")
        if replaces and not names:
            raise RequestRefused(
                "a token that replaces credentials must name them",
                remedy="name them: `dtdctl token create --name host7 --replace`",
            )
        record = TokenRecord(
            id=token.id,
            role=token.role,
            secret_sha256=secret_sha256(token.secret),
            created_s=now_s,
            expires_s=now_s + life_s if life_s else 0.0,
            uses=uses,
            names=names,
            replaces=replaces,
        )
        self._replace(self._with_room(now_s) | {record.id: record})
        return record

    def _with_room(self, now_s: float) -> dict[str, TokenRecord]:
        """The tokens that are kept beside a new one; used ones as long as there is room."""
        kept = {key: one for key, one in self._records.items() if not _has_expired(one, now_s)}
        used = sorted(
            (one for one in kept.values() if _is_over(one, now_s)), key=lambda one: one.created_s
        )
        for one in used[: max(0, len(kept) + 1 - MAX_TOKENS)]:
            del kept[one.id]
        if len(kept) >= MAX_TOKENS:
            raise RequestRefused(
                f"{MAX_TOKENS} tokens are valid", remedy="revoke some: `dtdctl token list`"
            )
        return kept

    def check(
        self, token_id: str, secret: str, role: str, name: str, key: str, *, now_s: float
    ) -> TokenRecord:
        """Check that a token is good for joining.

        Raises:
            RequestRefused: it is unknown, revoked, expired, used, or for others.
        """
        record = self._records.get(token_id)
        expected = record.secret_sha256 if record is not None else secret_sha256("")
        genuine = hmac.compare_digest(secret_sha256(secret), expected)
        if record is None or not genuine:
            raise RequestRefused("the token is not known here, or was revoked", remedy=_NEW_REMEDY)
        if _has_expired(record, now_s):
            raise RequestRefused(f"the token {token_id} has expired", remedy=_NEW_REMEDY)
        if record.role != role:
            raise RequestRefused(
                f"the token {token_id} is for the role {record.role}, not {role}",
                remedy=_NEW_REMEDY,
            )
        if record.names and name not in record.names:
            raise RequestRefused(
                f"the token {token_id} is for {', '.join(record.names)[:200]}, not {name[:80]}",
                remedy=f"join with --name {record.names[0]}, or ask for another token",
            )
        if _use(name, key) in record.used:  # its answer got lost
            return record
        if len(record.used) >= record.uses:
            raise RequestRefused(
                f"the token {token_id} is used up: it could be used {_times(record.uses)}",
                remedy=_NEW_REMEDY,
            )
        if record.names and any(one.split(" ")[0] == name for one in record.used):
            raise RequestRefused(
                f"the token {token_id} was already used for {name}", remedy=_NEW_REMEDY
            )
        return record

    def use(self, token_id: str, name: str, key: str) -> None:
        """Record that a token, which `check` has found good, is used for joining."""
        record = self._records[token_id]
        use = _use(name, key)
        if use not in record.used:
            used = replace(record, used=(*record.used, use))
            self._replace(self._records | {token_id: used})

    def redeem(self, token_id: str, secret: str, role: str, key: str, *, now_s: float) -> str:
        """Use a token once for something else than joining; return the name of its use.

        Raises:
            RequestRefused: as `check`.
        """
        record = self._records.get(token_id)
        taken = {use.split(" ")[0] for use in record.used} if record is not None else set()
        free = [name for name in (record.names if record is not None else ()) if name not in taken]
        name = free[0] if free else f"token-{token_id}"
        self.check(token_id, secret, role, name, key, now_s=now_s)
        self.use(token_id, name, key)
        return name

    def is_known(self, token_id: str) -> bool:
        """Whether it was made here and is not revoked; it may be used up."""
        return token_id in self._records

    def is_valid(self, token_id: str, *, now_s: float) -> bool:
        record = self._records.get(token_id)
        return record is not None and not _is_over(record, now_s)

    def revoke(self, token_id: str) -> None:
        """Forget a token.

        Raises:
            RequestRefused: there is none of this id.
        """
        if token_id not in self._records:
            raise RequestRefused(
                f"there is no token {token_id[:40]!r}", remedy="see `dtdctl token list`"
            )
        self._replace({key: one for key, one in self._records.items() if key != token_id})

    def listed(self, *, now_s: float) -> list[dict[str, object]]:
        """All tokens without their hashes, oldest first."""
        return [
            {
                "id": one.id,
                "role": one.role,
                "created_s": one.created_s,
                "expires_s": one.expires_s,
                "expired": _has_expired(one, now_s),
                "uses": one.uses,
                "used": [use.split(" ")[0] for use in one.used],
                "names": list(one.names),
                "replaces": one.replaces,
            }
            for one in sorted(self._records.values(), key=lambda one: one.created_s)
        ]

    def _replace(self, records: dict[str, TokenRecord]) -> None:
        write_records(self._path, [asdict(record) for record in records.values()])
        self._records = records


def _record(values: dict[str, Any]) -> TokenRecord:
    lists = {key: tuple(values.get(key, ())) for key in ("names", "used")}
    return TokenRecord(**{**values, **lists})


def _use(name: str, key: str) -> str:
    return f"{name} {key}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _has_expired(record: TokenRecord, now_s: float) -> bool:
    return bool(record.expires_s) and now_s >= record.expires_s


def _is_over(record: TokenRecord, now_s: float) -> bool:
    return _has_expired(record, now_s) or len(record.used) >= record.uses
