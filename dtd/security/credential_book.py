"""The credentials that a coordinator has issued, and which of them it has taken back.

Two files, `issued.json` and `revoked.json`; a serial in the second never becomes valid again.
Writing is blocking, one caller at a time; `is_revoked` only looks into memory.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dtd.errors import ConfigError, RequestRefused
from dtd.security.private_files import read_records, write_records

MAX_ISSUED: Final = 4096
ISSUED_FILE: Final = "issued.json"
REVOKED_FILE: Final = "revoked.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedRecord:
    """One certificate; times are Unix seconds."""

    serial: str
    role: str
    name: str
    issued_s: float
    expires_s: float
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokedRecord:
    """One certificate that counts no more."""

    serial: str
    revoked_s: float
    expires_s: float


class CredentialBook:
    """All credentials of a cluster whose life is not over.

    Args:
        directory: where the two files are, or will be.

    Raises:
        ConfigError: a file is damaged.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            issued = [IssuedRecord(**one) for one in read_records(directory / ISSUED_FILE)]
            revoked = [RevokedRecord(**one) for one in read_records(directory / REVOKED_FILE)]
        except TypeError as error:
            raise ConfigError(f"a list of credentials in {directory} is damaged: {error}") from None
        self._issued = {record.serial: record for record in issued}
        self._revoked = {record.serial: record for record in revoked}

    def add(self, record: IssuedRecord) -> None:
        """Remember a certificate before it is handed out.

        Raises:
            RequestRefused: too many are valid.
        """
        kept = {key: one for key, one in self._issued.items() if one.expires_s > record.issued_s}
        if len(kept) >= MAX_ISSUED:
            raise RequestRefused(f"{MAX_ISSUED} credentials are valid", remedy="none is made then")
        kept[record.serial] = record
        write_records(self._directory / ISSUED_FILE, [asdict(one) for one in kept.values()])
        self._issued = kept

    def is_revoked(self, serial: str) -> bool:
        """Whether this certificate counts no more."""
        return serial in self._revoked

    def revoke(self, name_or_serial: str, *, now_s: float) -> list[IssuedRecord]:
        """Take back one certificate, or all of a name; returns those that counted until now.

        Raises:
            RequestRefused: there is none.
        """
        wanted = [
            one
            for one in self._issued.values()
            if name_or_serial in (one.serial, one.name, f"{one.role}/{one.name}")
        ]
        if not wanted:
            raise RequestRefused(
                f"there is no credential {name_or_serial[:80]!r}", remedy="see `dtdctl credentials`"
            )
        roles = {one.role for one in wanted}
        if len(roles) > 1:
            names = ", ".join(sorted(f"{role}/{name_or_serial}" for role in roles))
            raise RequestRefused(
                f"several roles have a credential {name_or_serial!r}", remedy=f"say which: {names}"
            )
        fresh = [one for one in wanted if one.serial not in self._revoked]
        revoked = {key: one for key, one in self._revoked.items() if one.expires_s > now_s}
        for one in fresh:
            revoked[one.serial] = RevokedRecord(
                serial=one.serial, revoked_s=now_s, expires_s=one.expires_s
            )
        write_records(self._directory / REVOKED_FILE, [asdict(one) for one in revoked.values()])
        self._revoked = revoked
        return fresh

    def listed(self) -> list[dict[str, object]]:
        """All credentials, oldest first; `revoked_s` is 0 for those that count."""
        return [
            {**asdict(one), "revoked_s": self._revoked_s(one.serial)}
            for one in sorted(self._issued.values(), key=lambda one: one.issued_s)
        ]

    def _revoked_s(self, serial: str) -> float:
        record = self._revoked.get(serial)
        return record.revoked_s if record is not None else 0.0
