"""The credentials that a coordinator has issued, and which of them it has taken back.

A certificate counts while it stands in here: one that the authority has signed and this book does
not know is refused.  Certificates of one credential (the first, and what renews it) share its id,
and are taken back together.  Two files, `issued.json` and `revoked.json`; an id in the second never
counts again.

A book that was restored from a backup knows neither what was issued nor what was revoked after it.
Certificates that renew a credential of the backup count then, others do not; what was revoked after
the backup is valid again until it expires or is revoked once more.

What has ended is forgotten when room is needed and not before, so that a clock that was wrong for a
while loses nobody.  Writing is blocking, one caller at a time; `standing` only looks into memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from dtd.errors import ConfigError, RequestRefused
from dtd.security.identity import Identity
from dtd.security.private_files import read_records, write_records
from dtd.security.token import TOKENS_FILE

MAX_ISSUED: Final = 4096
MAX_REVOKED: Final = 4096
ISSUED_FILE: Final = "issued.json"
REVOKED_FILE: Final = "revoked.json"
RESTORED_FILE: Final = "restored.json"
REVOKED_REMEDY: Final = "ask the operator for a new token, and join again"
ENDED_REMEDY: Final = "ask the operator for a new token, and join again; compare both clocks"
UNKNOWN_REMEDY: Final = (
    "join again with a new token; if this coordinator was restored from a backup, it does not "
    "know the hosts that joined after the backup"
)
_JOIN_AGAIN: Final = "a token of `dtdctl token create --name {name} --replace` replaces it"


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedRecord:
    """One certificate; times are Unix seconds.

    Attributes:
        token: id of the token that it was made for, empty without one.
        credential: the credential that it belongs to.
    """

    serial: str
    role: str
    name: str
    issued_s: float
    expires_s: float
    token: str
    workers: tuple[str, ...]
    credential: str
    key: str
    fingerprint: str

    def is_of(self, who: Identity) -> bool:
        """Whether it is this very certificate; the authority's key can sign any serial again."""
        return self.names(who) and self.fingerprint == who.fingerprint

    def names(self, who: Identity) -> bool:
        """Whether it is of this holder's credential, role and name."""
        return (self.credential, self.role, self.name) == (who.credential, who.role, who.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokedRecord:
    """A credential, or one certificate, that counts no more; `serial` is its id."""

    serial: str
    revoked_s: float
    expires_s: float


class CredentialBook:
    """All credentials of a cluster.

    Raises:
        ConfigError: a file is damaged.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            issued = [
                IssuedRecord(**{**one, "workers": tuple(one["workers"])})
                for one in read_records(directory / ISSUED_FILE)
            ]
            revoked = [RevokedRecord(**one) for one in read_records(directory / REVOKED_FILE)]
        except (KeyError, TypeError) as error:
            raise ConfigError(f"a list of credentials in {directory} is damaged: {error}") from None
        self._issued = {record.serial: record for record in issued}
        self._revoked = {record.serial: record for record in revoked}
        self._restored_s = restored_s(directory)

    # --- validity ----------------------------------------------------------------------------

    def standing(self, who: Identity, *, now_s: float) -> tuple[str, str]:
        """Return why a certificate does not count, and the remedy; empty when it counts."""
        if not who.serial:
            return "", ""
        if self.is_revoked(who.serial, who.credential):
            return f"the credential of {who} is revoked", REVOKED_REMEDY
        if who.expires_s <= now_s:
            return f"the credential of {who} has expired and was not renewed", ENDED_REMEDY
        record = self._issued.get(who.serial)
        if not (record.is_of(who) if record is not None else self._renewed_after_backup(who)):
            why = f"the certificate {who.serial} of {who} was not issued by this coordinator"
            return why, UNKNOWN_REMEDY
        return "", ""

    def _all(self) -> list[IssuedRecord]:
        """Return all at once: the event loop may add one while the store's thread reads them."""
        return list(self._issued.values())

    def _renewed_after_backup(self, who: Identity) -> bool:
        """Whether a certificate renews a known credential, and was made after the backup."""
        known = [one for one in self._all() if one.names(who)]
        if not known or who.issued_s >= self._restored_s:
            return False
        self._issued[who.serial] = replace(
            known[-1],
            serial=who.serial,
            credential=who.credential,
            issued_s=who.issued_s,
            expires_s=who.expires_s,
            key="",
            fingerprint=who.fingerprint,
        )
        return True

    def is_revoked(self, serial: str, credential: str) -> bool:
        return serial in self._revoked or credential in self._revoked

    def record(self, serial: str) -> IssuedRecord | None:
        return self._issued.get(serial)

    def living(self, *, now_s: float) -> list[IssuedRecord]:
        """The certificates that count, oldest first."""
        return sorted(
            (
                one
                for one in self._all()
                if one.expires_s > now_s and not self.is_revoked(one.serial, one.credential)
            ),
            key=lambda one: one.issued_s,
        )

    def holder_of(self, worker: str, *, now_s: float) -> IssuedRecord | None:
        """Return the record of a living certificate that lists a worker's name."""
        return next((one for one in self.living(now_s=now_s) if worker in one.workers), None)

    def made_for(self, token: str, name: str, key: str) -> IssuedRecord | None:
        """The first certificate that a token has brought to a key, also if it counts no more."""
        wanted = token, name, key
        found = (one for one in self._all() if (one.token, one.name, one.key) == wanted)
        return next(found, None)

    # --- issuing -----------------------------------------------------------------------------

    def check_free(
        self,
        role: str,
        name: str,
        workers: Iterable[str],
        *,
        replaces: bool,
        key: str,
        now_s: float,
    ) -> list[IssuedRecord]:
        """Whether a credential can be issued; returns the certificates whose place it takes.

        Certificates that were issued for this key before do not count.

        Raises:
            RequestRefused: the name, or a name of its workers, is taken.
        """
        wanted, same = frozenset(workers), []
        for one in self.living(now_s=now_s):
            if one.key == key:
                continue
            if (one.role, one.name) == (role, name):
                same.append(one)
            elif one.role == role and not wanted.isdisjoint(one.workers):
                taken = min(wanted.intersection(one.workers))
                raise RequestRefused(
                    f"the name {taken} belongs to the credential {one.role}/{one.name}",
                    remedy="choose another one with --name, or revoke that credential",
                )
        if same and not replaces:
            raise RequestRefused(
                f"{role}/{name} already has a valid credential",
                remedy=f"choose another name with --name; {_JOIN_AGAIN.format(name=name)}",
            )
        return same

    def add(self, record: IssuedRecord) -> None:
        """Remember a certificate before it is handed out.

        Raises:
            RequestRefused: too many are valid.
            ConfigError: it cannot be written down.
        """
        kept = dict(self._issued)
        over = [one for one in kept.values() if one.expires_s <= record.issued_s]
        over.sort(key=lambda one: one.expires_s)
        # Their ids stay in the other list: they count no more, and need not keep others out.
        over += [
            one
            for one in kept.values()
            if one.expires_s > record.issued_s and self.is_revoked(one.serial, one.credential)
        ]
        for one in over[: max(0, len(kept) + 1 - MAX_ISSUED)]:
            del kept[one.serial]
        if len(kept) >= MAX_ISSUED:
            raise RequestRefused(
                f"{MAX_ISSUED} certificates are valid",
                remedy="some must expire first: see `dtdctl credentials`",
            )
        kept[record.serial] = record
        write_records(self._directory / ISSUED_FILE, [asdict(one) for one in kept.values()])
        self._issued = kept

    # --- taking back -------------------------------------------------------------------------

    def revoke(self, name_or_serial: str, *, now_s: float) -> list[IssuedRecord]:
        """Take back a credential, or all of a name; returns the certificates that counted.

        Raises:
            RequestRefused: there is none.
        """
        wanted = [
            one
            for one in self._all()
            if name_or_serial in (one.serial, one.credential, one.name, f"{one.role}/{one.name}")
        ]
        if not wanted:
            raise RequestRefused(
                f"there is no credential {name_or_serial[:80]!r}", remedy="see `dtdctl credentials`"
            )
        roles = {one.role for one in wanted}
        if len(roles) > 1:
            names = ", ".join(sorted(f"{role}/{name_or_serial}" for role in roles))
            raise RequestRefused(
                f"several roles have a credential {name_or_serial!r}",
                remedy=f"specify which one: {names}",
            )
        return self.take_back({one.credential for one in wanted}, now_s=now_s)

    def take_back(self, credentials: Iterable[str], *, now_s: float) -> list[IssuedRecord]:
        """Have these credentials count no more; returns the certificates that did until now."""
        gone = frozenset(credentials)
        fresh = [
            one
            for one in self._all()
            if one.credential in gone and not self.is_revoked(one.serial, one.credential)
        ]
        revoked = dict(self._revoked)
        for one in fresh:
            ends_s = max(one.expires_s, getattr(revoked.get(one.credential), "expires_s", 0.0))
            revoked[one.credential] = RevokedRecord(
                serial=one.credential, revoked_s=now_s, expires_s=ends_s
            )
        self._keep_revoked(revoked, now_s)
        return fresh

    def _keep_revoked(self, revoked: dict[str, RevokedRecord], now_s: float) -> None:
        over = sorted(
            (one for one in revoked.values() if one.expires_s <= now_s),
            key=lambda one: one.expires_s,
        )
        for one in over[: max(0, len(revoked) - MAX_REVOKED)]:
            del revoked[one.serial]
        write_records(self._directory / REVOKED_FILE, [asdict(one) for one in revoked.values()])
        self._revoked = revoked

    # --- showing -----------------------------------------------------------------------------

    def listed(self, *, now_s: float) -> list[dict[str, object]]:
        """All that have not ended, oldest first; `revoked_s` is 0 for those that count."""
        return [
            {
                "serial": one.serial,
                "credential": one.credential,
                "role": one.role,
                "name": one.name,
                "workers": list(one.workers),
                "issued_s": one.issued_s,
                "expires_s": one.expires_s,
                "token": one.token,
                "revoked_s": self._revoked_s(one),
            }
            for one in sorted(self._all(), key=lambda one: one.issued_s)
            if one.expires_s > now_s
        ]

    def _revoked_s(self, record: IssuedRecord) -> float:
        found = self._revoked.get(record.credential) or self._revoked.get(record.serial)
        return found.revoked_s if found is not None else 0.0


def restored_s(directory: Path) -> float:
    """Unix time at which a backup was made this directory of; 0: it never was.

    Raises:
        ConfigError: the file that says so is damaged.
    """
    records = read_records(directory / RESTORED_FILE)
    try:
        return max((float(one["restored_s"]) for one in records), default=0.0)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{directory / RESTORED_FILE} is damaged: {error}") from None


def mark_restored(directory: Path, *, now_s: float) -> None:
    """A backup becomes this directory: say when, and forget all tokens, which may have been used.

    Raises:
        ConfigError: it cannot be written.
    """
    (directory / TOKENS_FILE).unlink(missing_ok=True)
    write_records(directory / RESTORED_FILE, [{"restored_s": now_s}])
