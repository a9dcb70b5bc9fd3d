"""The list of revocations, a text that the authority signs and workers store.

    SIGNATURE in hexadecimal, end of line, {"cluster": ..., "revoked": [[ID, WHEN, END], ...]}

A coordinator that is restored from a backup does not know what was revoked after that.  Workers
that were there do, and say so.  They cannot add to the list, since they cannot sign it.  Signing
and verifying is the authority's; here is the form.  Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from dtd.security.credential_book import MAX_REVOKED, RevokedRecord

MAX_BYTES: Final = 512 * 1024
CONTEXT: Final = b"dtd revocations 1\n"
"""Signed along, so that the signature is good for nothing else."""
_SIGNATURE_DIGITS: Final = 160


def body_of(cluster: str, records: Iterable[RevokedRecord]) -> bytes:
    """Return the bytes to sign: in one order, so that equal lists are equal bytes."""
    revoked = sorted((one.serial, one.revoked_s, one.expires_s) for one in records)
    return json.dumps({"cluster": cluster, "revoked": revoked}, separators=(",", ":")).encode()


def joined(signature: bytes, body: bytes) -> bytes:
    """The whole text."""
    return signature.hex().encode() + b"\n" + body


def parted(document: bytes) -> tuple[bytes, bytes]:
    """Signature and body.

    Raises:
        ValueError: it has another form.
    """
    digits, newline, body = document.partition(b"\n")
    if not newline or len(digits) > _SIGNATURE_DIGITS or len(document) > MAX_BYTES:
        raise ValueError("it is not a list of revocations")
    return bytes.fromhex(digits.decode("ascii", "replace")), body


def read(body: bytes) -> tuple[str, list[RevokedRecord]]:
    """Return the cluster and the records of a body.

    Raises:
        ValueError: it has another form.
    """
    found = json.loads(body)
    lines = found.get("revoked") if isinstance(found, dict) else None
    if not isinstance(lines, list) or len(lines) > MAX_REVOKED:
        raise ValueError("it is empty")
    return str(found.get("cluster", "")), [_record(line) for line in lines]


def _record(line: Any) -> RevokedRecord:
    if not isinstance(line, list) or len(line) != 3:
        raise ValueError("a line of it is damaged")
    serial, revoked_s, expires_s = line
    times = isinstance(revoked_s, int | float) and isinstance(expires_s, int | float)
    if not isinstance(serial, str) or len(serial) > 40 or not times:
        raise ValueError("one of its lines has no credential or no time")
    return RevokedRecord(serial=serial, revoked_s=float(revoked_s), expires_s=float(expires_s))
