"""A worker's state directory: its lock for one process at a time, and its unique id.

The lock is a POSIX record lock: the kernel gives it up when the process ends, processes that load
data do not inherit it, and it outlives execve, so that a worker which replaces itself after a job
never lets go of it.  The process that holds the lock knows that the previous process in this
directory is dead; the coordinator concludes the same from an equal *instance*
(`dtd.cluster.workers.registration`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Final

import structlog

from dtd.errors import ConfigError
from dtd.host.durable import make_directory
from dtd.security.private_files import write_private

LOCK_NAME: Final = "lock"
INSTANCE_NAME: Final = "instance"
HANDED_OVER: Final = "DTD_STATE_LOCK_FD"
"""Environment of a process that replaces itself: the descriptor of the lock."""

LOCKED_WITHIN_S: Final = 2.0
"""A process that was killed a moment ago may still be on its way out."""
PAUSE_S: Final = 0.05
INSTANCE_CHARACTERS: Final = 16
MAX_DIGITS: Final = 9
MACHINE_ID: Final = Path("/etc/machine-id")

_ID: Final = re.compile(r"[0-9a-f]{32}")


class StateDirectory:
    """The directory, locked for this process until it ends.

    Args:
        path: made if missing, readable by its owner only.
        environ: names the lock inherited from the process that this one replaces.

    Attributes:
        instance: id of this directory on this host; where the file system has no locks, of this
            process, since equal ids would then prove nothing.

    Raises:
        ConfigError: it cannot be used, or another worker uses it.
    """

    def __init__(
        self,
        path: Path,
        environ: MutableMapping[str, str],
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        try:
            make_directory(path, mode=0o700)
            self._lock = _opened(path / LOCK_NAME, environ.pop(HANDED_OVER, ""))
            locked = _take(self._lock, path, sleep)
        except OSError as error:
            raise ConfigError(
                f"state directory {path} cannot be used: {error.strerror}",
                remedy="choose another with --state-dir",
            ) from error
        own = _own_id(path / INSTANCE_NAME) if locked else secrets.token_hex(16)
        self.instance = _hash(f"{own}\0{_machine_id()}")

    def hand_over(self) -> dict[str, str]:
        """Leave the lock to the image that replaces this process; its further environment."""
        os.set_inheritable(self._lock, True)  # noqa: FBT003 - takes no keyword
        return {HANDED_OVER: str(self._lock)}

    def close(self) -> None:
        os.close(self._lock)


def _opened(file: Path, handed_over: str) -> int:
    """A descriptor of the lock's file: the one that was handed over, if it is that.

    No second one is opened beside it: to close any of them would give up the lock.
    """
    if handed_over.isdecimal() and len(handed_over) <= MAX_DIGITS:
        inherited = int(handed_over)
        try:
            if os.path.samestat(os.fstat(inherited), file.stat()):
                os.set_inheritable(inherited, False)  # noqa: FBT003 - takes no keyword
                return inherited
        except OSError:
            pass  # it is none of ours
    return os.open(file, os.O_RDWR | os.O_CREAT, 0o600)


def _take(descriptor: int, path: Path, sleep: Callable[[float], None]) -> bool:
    """Lock the directory; returns whether its file system has locks."""
    for _ in range(round(LOCKED_WITHIN_S / PAUSE_S)):
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            sleep(PAUSE_S)
        except OSError:
            return False
        else:
            return True
    raise ConfigError(
        f"another worker uses the state directory {path}",
        remedy="stop it, or give this one a directory of its own with --state-dir",
    )


def _own_id(file: Path) -> str:
    """The id in the file, drawn when it is read first; a damaged one is drawn anew."""
    try:
        known = file.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        known = ""
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    if not _ID.fullmatch(known):
        known = secrets.token_hex(16)
        write_private(file, known.encode() + b"\n")
    return known


def _machine_id() -> str:
    """Empty where the host has none; a directory that two hosts share is two instances."""
    try:
        return MACHINE_ID.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode()).hexdigest()[:INSTANCE_CHARACTERS]


# --- the directory through which one user's workers on a host exchange open files ----------------
#
# It lies in the runtime directory that systemd gives a service, else in the state directory, and
# only its owner can enter it: so no other user can put anything into its sockets
# (`dtd.net.descriptors`).  Blocking, for a moment.


log = structlog.get_logger()

FD_DIRECTORY: Final = "fds"


def fd_directory(state_dir: Path, environ: Mapping[str, str]) -> Path | None:
    """The directory, made and emptied; None where it cannot be had: everything is sent then."""
    runtime = environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    directory = (Path(runtime) if runtime else state_dir) / FD_DIRECTORY
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError("users other than this worker's can enter it")
        for left_over in directory.iterdir():  # by a process that was killed
            left_over.unlink()
    except OSError as error:
        log.warning(
            "memory_not_shared",
            directory=str(directory),
            reason=error.strerror or str(error),
            remedy="remove the directory; until then neighbours on this host send all elements",
        )
        return None
    return directory
