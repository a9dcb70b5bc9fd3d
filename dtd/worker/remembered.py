"""A worker's records on disk about its coordinators: epochs of stores, and revocations.

A store that was restored from a backup has a higher epoch than the one it was made of.  When the
old coordinator returns after that, both claim to be in charge; workers compare the epochs, and stay
with the newer one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import structlog

from dtd.errors import ConfigError
from dtd.security.credential_book import RevokedRecord
from dtd.security.private_files import read_private, write_private
from dtd.security.revocation_list import MAX_BYTES, parted, read

log = structlog.get_logger()

EPOCHS_FILE: Final = "epochs.json"
MAX_STORES: Final = 16


class Epochs:
    """The highest epoch of each store, in a file.

    Args:
        path: the file; a missing or damaged one has no epochs.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _read_epochs(path)

    def outdated(self, store_id: str, epoch: int) -> str:
        """Return why a coordinator with this store is rejected; empty if accepted."""
        newest = self._seen.get(store_id, 0)
        if epoch >= newest:
            return ""
        return (
            f"its store has epoch {epoch}, but this worker has seen epoch {newest}: it was"
            " restored elsewhere; stop this coordinator"
        )

    def remember(self, store_id: str, epoch: int) -> bool:
        """Take the epoch down in memory; returns whether it is news that `save` should keep."""
        if not store_id or epoch <= self._seen.get(store_id, 0):
            return False
        self._seen.pop(store_id, None)
        self._seen[store_id] = epoch
        for oldest in [*self._seen][:-MAX_STORES]:
            del self._seen[oldest]
        return True

    def save(self) -> None:
        """Write the file; it survives a loss of power.  Blocking; a failure is logged."""
        try:
            write_private(self._path, json.dumps(self._seen).encode())
        except ConfigError as error:
            log.error("epochs_not_saved", error=str(error))


def _read_epochs(path: Path) -> dict[str, int]:
    try:
        seen = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("epochs_unreadable", path=str(path), error=str(error))
        return {}
    if not isinstance(seen, dict):
        return {}
    return {str(key): value for key, value in seen.items() if type(value) is int}


# --- the coordinator's list of revocations -------------------------------------------------------
#
# A coordinator that is restored from a backup has forgotten what was revoked after that, and asks
# the workers.  Nothing here is verified: only the coordinator has to believe it, and it has signed
# it.


REVOCATIONS_FILE: Final = "revocations"


class Revocations:
    """The list that was received last.

    Args:
        path: the file; a missing or damaged one is empty.

    Attributes:
        document: the list, empty when nothing is known.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.document = _read_revocations(path)

    def heard(self, document: bytes) -> bool:
        """Take down what the coordinator says, in memory.

        Returns:
            whether it is news that `save` should keep.  It is not when the coordinator leaves out
            what is known here and has not ended: it has been told, and says so when it believes it.
            Another cluster's coordinator has nothing to do with that.  The time is taken from the
            list: it is at least that of the newest revocation, by the clock that all times of the
            list are from.
        """
        if not document or document == self.document:
            return False
        try:
            (known_cluster, known), (cluster, said) = _content(self.document), _content(document)
        except ValueError as error:
            log.warning("revocations_damaged", error=str(error))
            return False
        now_s = max((one.revoked_s for one in said), default=0.0)
        living = {one.serial for one in known if one.expires_s > now_s}
        news = known_cluster != cluster or living <= {one.serial for one in said}
        if news:
            self.document = document
        return news

    def save(self) -> None:
        """Write the file; it survives a loss of power.  Blocking; a failure is logged."""
        try:
            write_private(self._path, self.document)
        except ConfigError as error:
            log.warning("revocations_not_kept", error=str(error))


def _read_revocations(path: Path) -> bytes:
    if not path.exists():
        return b""
    try:
        document = read_private(path)
        _content(document)
    except (ConfigError, ValueError) as error:
        log.warning("revocations_damaged", error=str(error))
        return b""
    return document if len(document) <= MAX_BYTES else b""


def _content(document: bytes) -> tuple[str, list[RevokedRecord]]:
    """Return the cluster of a list, and the credentials that it revokes.

    Raises:
        ValueError: it is none.
    """
    return read(parted(document)[1]) if document else ("", [])
