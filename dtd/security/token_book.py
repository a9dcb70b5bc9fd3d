"""The tokens that a coordinator has given out: made, redeemed, listed, revoked.

One file, `tokens.json`, without any secret in it.  Blocking; one caller at a time.
"""

from __future__ import annotations

import hmac
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dtd.errors import ConfigError, RequestRefused
from dtd.security.private_files import read_records, write_records
from dtd.security.token import Token, secret_sha256

MAX_TOKENS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """What is kept of a token; times are Unix seconds, `expires_s` 0 means never."""

    id: str
    role: str
    secret_sha256: str
    created_s: float
    expires_s: float


class TokenBook:
    """All tokens that are not revoked.

    Args:
        path: of the file; need not exist.

    Raises:
        ConfigError: the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            found = [TokenRecord(**record) for record in read_records(path)]
        except TypeError as error:
            raise ConfigError(f"{path} is damaged: {error}") from None
        self._records = {record.id: record for record in found}

    def add(self, token: Token, *, life_s: int, now_s: float) -> TokenRecord:
        """Remember a new token; the oldest that is over makes room.

        Args:
            token: the token; its secret is hashed.
            life_s: how long it is good for; 0: until it is revoked.
            now_s: Unix seconds.

        Raises:
            RequestRefused: too many tokens are valid.
        """
        record = TokenRecord(
            id=token.id,
            role=token.role,
            secret_sha256=secret_sha256(token.secret),
            created_s=now_s,
            expires_s=now_s + life_s if life_s else 0.0,
        )
        kept = {key: one for key, one in self._records.items() if not _is_over(one, now_s)}
        if len(kept) >= MAX_TOKENS:
            raise RequestRefused(
                f"{MAX_TOKENS} tokens are valid", remedy="revoke some: `dtdctl token list`"
            )
        self._replace(kept | {record.id: record})
        return record

    def redeem(self, token_id: str, secret: str, role: str, *, now_s: float) -> None:
        """Check that a token is good for a role.

        Raises:
            RequestRefused: it is unknown, revoked, expired, or for another role.
        """
        record = self._records.get(token_id)
        expected = record.secret_sha256 if record is not None else secret_sha256("")
        genuine = hmac.compare_digest(secret_sha256(secret), expected)
        remedy = "ask the operator for a new one: `dtdctl token create`"
        if record is None or not genuine:
            raise RequestRefused("the token is not known here, or was revoked", remedy=remedy)
        if _is_over(record, now_s):
            raise RequestRefused(f"the token {token_id} has expired", remedy=remedy)
        if record.role != role:
            raise RequestRefused(
                f"the token {token_id} is for the role {record.role}, not {role}", remedy=remedy
            )

    def is_valid(self, token_id: str, *, now_s: float) -> bool:
        """Whether somebody can still join with it."""
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
                **{key: value for key, value in asdict(one).items() if key != "secret_sha256"},
                "expired": _is_over(one, now_s),
            }
            for one in sorted(self._records.values(), key=lambda one: one.created_s)
        ]

    def _replace(self, records: dict[str, TokenRecord]) -> None:
        write_records(self._path, [asdict(record) for record in records.values()])
        self._records = records


def _is_over(record: TokenRecord, now_s: float) -> bool:
    return bool(record.expires_s) and now_s >= record.expires_s
