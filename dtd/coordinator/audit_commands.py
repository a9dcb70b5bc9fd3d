"""What somebody does with a coordinator's state directory by command is entered in its audit log.

A backup may be taken while the daemon runs, so it enters itself through a connection of its own to
the store's file, as the user whom the file belongs to: what is beside it stays the daemon's, and a
link that this user has put there does not lead root to another file.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dtd.coordinator.audit_table import append
from dtd.coordinator.database import FILE_NAME
from dtd.core.audit import DONE, Entry
from dtd.security.identity import LOCAL


def command_entry(what: str, about: Mapping[str, Any]) -> Entry:
    """The entry of a command that this process's user runs."""
    return Entry(
        time_s=time.time(),
        role=LOCAL,
        who=f"uid {os.getuid()}",
        what=what,
        about=about,
        outcome=DONE,
    )


def enter_command(state_dir: Path, entry: Entry) -> str:
    """Enter it in the store of a state directory, whether a daemon uses it or not.

    Returns:
        Why that was not possible; empty when it was.
    """
    path = state_dir / FILE_NAME
    try:
        with _as_owner_of(path), contextlib.closing(_connected(path)) as connection:
            cursor = connection.cursor()
            cursor.execute("BEGIN IMMEDIATE")
            append(cursor, entry)
            cursor.execute("COMMIT")
    except (OSError, sqlite3.Error) as error:
        return str(error)
    return ""


def _connected(path: Path) -> sqlite3.Connection:
    """To a store that is there; one that is not is not made."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)


@contextlib.contextmanager
def _as_owner_of(path: Path) -> Iterator[None]:
    """Root writes as the file's owner."""
    owner = path.lstat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    group = os.getegid()
    os.setegid(owner.st_gid)
    try:
        os.seteuid(owner.st_uid)
        try:
            yield
        finally:
            os.seteuid(0)
    finally:
        os.setegid(group)
