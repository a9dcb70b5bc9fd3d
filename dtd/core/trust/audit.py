"""The audit log as a chain: each entry holds the hash of the one before it.

So an entry that was changed, taken out, put in or moved is found by whoever has all of them, and a
log that was cut at its end by whoever noted an earlier hash (the journal has the hash of each).
What was removed because the log is bounded is said by an entry of its own, with the hash at which
it was cut.  Pure: times are handed in, and where entries are kept is the store's business.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

BEGINNING: Final = "0" * 64
"""What stands for the hash before the first entry."""
TRIMMED: Final = "AUDIT_TRIMMED"
"""The entry that says which entries were removed, to keep the log within its bounds."""
BEGUN: Final = "begun"
DONE: Final = "done"
REFUSED: Final = "refused"
FAILED: Final = "failed"
CUT: Final = "cut"
"""Outcomes; "cut": whoever asked was gone before the answer, and it may have been done."""
ENTERED: Final = (
    *("seq", "time_s", "role", "who", "serial", "address", "what", "about", "outcome", "reason"),
    *("result", "skipped"),
)
"""The fields of an entry that its hash is made of, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One call: who asked what of whom, and what came of it.

    Attributes:
        time_s: Unix time.
        role: of whoever asked.
        who: his name in that role, or his user id.
        serial: of his certificate; empty without one.
        address: where he called from.
        what: name of the request, as protocol.md has it.
        about: its arguments.
        outcome: one of those above.
        reason: why it was refused or failed.
        result: what came of it.
        skipped: refusals of the same caller before this one that were not entered.
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
    """What came of looking at the chain.

    Attributes:
        entries: how many were looked at.
        first: number of the first of them; 0 without any.
        last: number of the last.
        hash: of the last: note it, and compare another day.
        fault: what is wrong, and where; empty when nothing is.
    """

    entries: int
    first: int
    last: int
    hash: str
    fault: str


def canonical(value: Any) -> str:
    """JSON in the one way in which it is hashed and stored."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def hash_of(previous: str, entry: Mapping[str, Any]) -> str:
    """The hash of an entry, a map of its fields, after that of the entry before it."""
    body = canonical([entry[name] for name in ENTERED])
    return hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()


class Chain:
    """Looks at all entries that there are, oldest first, as they come."""

    def __init__(self) -> None:
        self._entries = self._first = self._last = 0
        self._begins = self._hash = BEGINNING
        self._cuts: dict[int, str] = {}
        self._fault = ""

    def add(self, entry: Mapping[str, Any]) -> None:
        """Look at the next entry, a map with the fields of `ENTERED`, `previous` and `hash`."""
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
        """What came of it.

        Args:
            newest: the highest number that was ever given, if that is known.
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
    """Older entries may be gone only if an entry says so."""
    if first == 1 and begins == BEGINNING:
        return ""
    if cuts.get(first - 1) != begins:
        return f"entries before {first} are missing, and no entry says that they were removed"
    return ""
