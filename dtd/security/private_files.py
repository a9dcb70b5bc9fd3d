"""Files that only their owner may read: written whole or not at all, refused when others can read.

Blocking; called at start, by commands, and in the store's thread.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any, Final

from dtd.errors import ConfigError
from dtd.host.durable import make_directory, sync_directory, synced

_AS_OWNER: Final = "run the command as the user that owns the directory"
_MAKE_ROOM: Final = "free space on that file system, and try again"
_REMEDIES: Final = {
    errno.EACCES: _AS_OWNER,
    errno.EPERM: _AS_OWNER,
    errno.ENOSPC: _MAKE_ROOM,
    errno.EDQUOT: _MAKE_ROOM,
}


def write_private(path: Path, content: bytes) -> None:
    """Replace the file; it has mode 0600 from its first byte on, and survives a loss of power.

    Raises:
        ConfigError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with synced(os.fdopen(descriptor, "wb")) as file:
                os.fchmod(descriptor, 0o600)  # whatever the umask is: a job may have set it
                file.write(content)
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}",
            remedy=_REMEDIES.get(error.errno or 0, f"check the directory {path.parent}"),
        ) from None


def read_private(path: Path, *, group_may_read: bool = False) -> bytes:
    """The content of a file that must be its owner's alone.

    Args:
        path: the file.
        group_may_read: a service manager guards the directory; the group's bits are then those of
            an access list.

    Raises:
        ConfigError: it cannot be read, or others can read it.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    mode = stat.S_IMODE(status.st_mode)
    if mode & (0o037 if group_may_read else 0o077):
        raise ConfigError(
            f"{path} is accessible to users other than its owner (mode {mode:04o})",
            remedy=f"if nobody has read it: chmod 600 {path}; otherwise revoke what it contains",
        )
    return content


def make_private_directory(path: Path) -> None:
    """Make a directory of mode 0700 and its parents, unless it is there.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        make_directory(path, mode=0o700)
    except OSError as error:
        raise ConfigError(f"directory {path} cannot be created: {error.strerror}") from None


def write_records(path: Path, records: list[dict[str, Any]]) -> None:
    """Replace a file of records.

    Raises:
        ConfigError: it cannot be written.
    """
    write_private(path, json.dumps(records, indent=1).encode() + b"\n")


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file; none when it is not there.

    Raises:
        ConfigError: it is damaged, or as for `read_private`.
    """
    if not path.exists():
        return []
    try:
        records = json.loads(read_private(path))
    except ValueError as error:
        raise ConfigError(
            f"{path} is damaged: {error}", remedy="restore it from a backup"
        ) from None
    if not isinstance(records, list) or not all(isinstance(one, dict) for one in records):
        raise ConfigError(f"{path} is damaged: no list of records", remedy="restore it")
    return records
