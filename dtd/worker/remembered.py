"""A worker's records on disk about its coordinators: epochs of stores.

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
from dtd.security.private_files import write_private

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
