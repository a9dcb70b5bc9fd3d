"""What the coordinator has revoked, kept on the worker's disk in the coordinator's own words.

A coordinator that is restored from a backup has forgotten what was revoked after that, and asks the
workers.  Nothing here is verified: only the coordinator has to believe it, and it has signed it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import structlog

from dtd.errors import ConfigError
from dtd.security.private_files import read_private, write_private
from dtd.security.revocation_list import MAX_BYTES, parted, read

log = structlog.get_logger()

FILE_NAME: Final = "revocations"


class Revocations:
    """The list that was received last.

    Args:
        path: the file; one that is missing or damaged knows nothing.

    Attributes:
        document: the list, empty when nothing is known.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.document = _read(path)

    def heard(self, document: bytes) -> bool:
        """Take down what the coordinator says, in memory.

        Returns:
            whether it is news that `save` should keep.  It is not when the coordinator leaves out
            what is known here and has not ended: it has been told, and says so when it believes it.
            Another cluster's coordinator has nothing to do with that.
        """
        now_s = time.time()
        try:
            known, said = _names(self.document, now_s), _names(document, now_s)
            other = bool(document) and document != self.document
            news = other and (known[0] != said[0] or known[1] <= said[1])
        except ValueError as error:
            log.warning("revocations_damaged", error=str(error))
            return False
        if news:
            self.document = document
        return news

    def save(self) -> None:
        """Write the file; it survives a loss of power.  Blocking; a failure is logged."""
        try:
            write_private(self._path, self.document)
        except ConfigError as error:
            log.warning("revocations_not_kept", error=str(error))


def _read(path: Path) -> bytes:
    if not path.exists():
        return b""
    try:
        document = read_private(path)
        _names(document, 0.0)
    except (ConfigError, ValueError) as error:
        log.warning("revocations_damaged", error=str(error))
        return b""
    return document if len(document) <= MAX_BYTES else b""


def _names(document: bytes, now_s: float) -> tuple[str, frozenset[str]]:
    """Of which cluster a list is, and what it names that has not ended.

    Raises:
        ValueError: it is none.
    """
    if not document:
        return "", frozenset()
    cluster, records = read(parted(document)[1])
    return cluster, frozenset(one.serial for one in records if one.expires_s > now_s)
