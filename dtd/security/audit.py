"""The audit log as a hash chain: each entry contains the hash of the previous one.

A complete copy of the log therefore reveals any entry that was changed, removed, inserted or
moved.  Truncation at the end is detected with a hash that was noted earlier (the journal contains
the hash of each entry).  When old entries are removed because the log is bounded, a separate entry
records this with the hash at which the log was cut.  Pure: times are passed in, and storing the
entries is the store's responsibility.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

BEGINNING: Final = "0" * 64
"""Takes the place of the previous hash in the first entry."""
TRIMMED: Final = "AUDIT_TRIMMED"
"""The entry that records which entries were removed to keep the log within its bounds."""
BEGUN: Final = "begun"
DONE: Final = "done"
REFUSED: Final = "refused"
FAILED: Final = "failed"
CUT: Final = "cut"
"""Outcomes; "cut": the caller disconnected before the answer, and the call may have been done."""
ENTERED: Final = (
    *("seq", "time_s", "role", "who", "serial", "address", "what", "about", "outcome", "reason"),
    *("result", "skipped"),
)
"""The fields of an entry that are hashed, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One call: the caller, the request and its outcome.

    Attributes:
        time_s: Unix time.
        role: role of the caller.
        who: name of the caller in that role, or its user id.
        serial: serial number of the caller's certificate; empty without one.
        address: address of the caller.
        what: name of the request, as in protocol.md.
        about: arguments of the request.
        outcome: one of the outcomes above.
        reason: why the request was refused or failed.
        result: result of the request.
        skipped: earlier refusals of the same caller that were not recorded.
    """

    time_s: float
    role: str
    who: str
    serial: str = ""
    address: str = ""
    what: str
    about: Mapping[str, Any] = field(default_factory=dict)
    outcome: str
    reason: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of verifying the chain.

    Attributes:
        entries: number of entries verified.
        first: number of the first of them; 0 without any.
        last: number of the last.
        hash: hash of the last entry, to be noted for a later comparison.
        fault: what is wrong, and where; empty if the chain is intact.
    """

    entries: int
    first: int
    last: int
    hash: str
    fault: str


def canonical(value: Any) -> str:
    """The canonical JSON text of a value, which is hashed and stored."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def hash_of(previous: str, entry: Mapping[str, Any]) -> str:
    """The hash of an entry (a map of its fields) that follows the entry with hash `previous`."""
    body = canonical([entry[name] for name in ENTERED])
    return hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()


class Chain:
    """Verifies all existing entries incrementally, oldest first."""

    def __init__(self) -> None:
        self._entries = self._first = self._last = 0
        self._begins = self._hash = BEGINNING
        self._cuts: dict[int, str] = {}
        self._fault = ""

    def add(self, entry: Mapping[str, Any]) -> None:
        """Verify the next entry, a map with the fields of `ENTERED`, `previous` and `hash`."""
        seq = entry["seq"]
        if not self._entries:
            self._first, self._last = seq, seq - 1
            self._begins = self._hash = entry["previous"]
        self._fault = self._fault or _fault(entry, self._last, self._hash)
        if entry["what"] == TRIMMED:
            self._cuts[entry["about"]["through"]] = entry["about"]["hash"]
        self._entries += 1
        self._last, self._hash = seq, entry["hash"]

    def verdict(self, newest: int = 0) -> Verdict:
        """The result for all entries added so far.

        Args:
            newest: the highest number ever assigned to an entry; 0 if unknown.
        """
        fault = self._fault
        if not fault and self._entries:
            fault = _fault_of_the_beginning(self._first, self._begins, self._cuts)
        if not fault and newest > self._last:
            fault = f"entries {self._last + 1} to {newest} at the end are missing"
        return Verdict(
            entries=self._entries,
            first=self._first,
            last=self._last,
            hash=self._hash,
            fault=fault,
        )


def _fault(entry: Mapping[str, Any], last: int, known: str) -> str:
    seq = entry["seq"]
    if seq <= last:
        return f"entry {seq} comes after entry {last}"
    if seq != last + 1:
        return f"entries {last + 1} to {seq - 1} are missing"
    if entry["previous"] != known:
        return f"entry {seq} does not follow entry {last}: one of them was replaced"
    if entry["hash"] != hash_of(known, entry):
        return f"entry {seq} was changed"
    return ""


def _fault_of_the_beginning(first: int, begins: str, cuts: Mapping[int, str]) -> str:
    """Older entries may be missing only if an entry records their removal."""
    if first == 1 and begins == BEGINNING:
        return ""
    if cuts.get(first - 1) != begins:
        return f"entries before {first} are missing, and no entry says that they were removed"
    return ""
