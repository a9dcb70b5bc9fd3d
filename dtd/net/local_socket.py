"""The coordinator's socket for its own host: bound in its own directory, and verified by callers.

Both sides check the kernel's report of the other side's user. The calling side does so because a
process that puts its own socket in the coordinator's place could command workers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dtd.address import SocketPath
from dtd.errors import ConfigError, ErrorCode, ProtocolError
from dtd.security.identity import ROOT_UID, peer_uid

_PROBE_S: Final = 1.0
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def bound_socket(at: SocketPath) -> socket.socket:
    """A bound socket that does not accept yet; a stale socket file is removed.

    Users that can enter the directory may connect; the kernel reports the user of each.

    Raises:
        ConfigError: it cannot be bound, or another process listens there.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(0)
        _make_room(at)
        with short_name(at.path) as name:
            made.bind(name)
        _open_to_all(at)
    except OSError as error:
        made.close()
        raise ConfigError(
            f"the socket {at} cannot be bound: {error.strerror or error}",
            remedy="check its directory, or name another file with --socket",
        ) from error
    except BaseException:
        made.close()
        raise
    return made


def remove_socket(at: SocketPath) -> None:
    """Remove the socket's file, so that no caller waits for an answer there."""
    with contextlib.suppress(OSError):
        Path(at.path).unlink()


def call(at: SocketPath, timeout_s: float) -> socket.socket:
    """Connect to the listener there, after checking that its user may run the coordinator.

    Raises:
        OSError: nothing listens there, or it cannot be reached.
        ProtocolError: REFUSED, the socket belongs to another user.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout_s)
        with short_name(at.path) as name:
            made.connect(name)
        check_listener(at, peer_uid(made))
    except BaseException:
        made.close()
        raise
    return made


def check_listener(at: SocketPath, uid: int) -> None:
    """Check that the listening user may be the coordinator's.

    That is root, the caller's own user, or the owner of the socket's directory, provided that only
    these three can have created it.

    Raises:
        OSError: the directory cannot be inspected.
        ProtocolError: REFUSED, it is another user.
    """
    trusted = (ROOT_UID, os.geteuid())
    if uid in trusted:
        return
    why = _may_be_anybodys(Path(at.path).parent, uid, trusted)
    if why:
        raise ProtocolError(
            ErrorCode.REFUSED,
            f"uid {uid} listens at {at}, which may be any user: {why}",
            remedy="if that is the coordinator's user, give it its own directory below"
            " directories of root's; otherwise find out which process took its place",
        )


def _may_be_anybodys(directory: Path, uid: int, trusted: tuple[int, ...]) -> str:
    """Why another user may have created a directory; empty when only these users can have."""
    behind = directory.resolve()
    if behind.stat().st_uid != uid:
        return f"{behind} does not belong to that user"
    for place in (directory, *directory.parents, behind, *behind.parents):
        status = place.lstat()
        is_link = stat.S_ISLNK(status.st_mode)  # its mode means nothing
        if not is_link and status.st_mode & _WRITABLE_BY_OTHERS:
            return f"other users can write to {place}"
        if status.st_uid not in (trusted if is_link else (*trusted, uid)):
            return f"{place} belongs to uid {status.st_uid}"
    return ""


def _open_to_all(at: SocketPath) -> None:
    """Make the socket connectable; a file that another process has put there is left unchanged."""
    descriptor = os.open(at.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "another user's file has taken its place")
        Path(f"/proc/self/fd/{descriptor}").chmod(0o666)
    finally:
        os.close(descriptor)


def _make_room(at: SocketPath) -> None:
    """Remove the socket of a dead coordinator."""
    path = Path(at.path)
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise ConfigError(
            f"{path} is not a socket", remedy="move it away: the coordinator's socket goes there"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            with short_name(at.path) as name:
                probe.connect(name)
        except ConnectionRefusedError:
            path.unlink()
            return
        except (TimeoutError, BlockingIOError):
            pass  # its queue is full: a process listens
    raise ConfigError(
        f"another process listens at {at}",
        remedy="stop that process first, or name another file with --socket",
    )


# --- names for Unix-domain sockets that the kernel takes, however long their paths are (unix(7)) -


LONGEST_NAME_BYTES: Final = 107
"""Longest path in a socket address, without the terminating zero."""


@contextlib.contextmanager
def short_name(path: str) -> Iterator[str]:
    """The path itself, or a shorter name of the same file through its open directory.

    Raises:
        OSError: there is no such directory, or the file's own name is too long.
    """
    if len(os.fsencode(path)) <= LONGEST_NAME_BYTES:
        yield path
        return
    directory = os.open(Path(path).parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        name = f"/proc/self/fd/{directory}/{Path(path).name}"
        if len(os.fsencode(name)) > LONGEST_NAME_BYTES:
            raise OSError(errno.ENAMETOOLONG, f"the name is too long for a socket: {path}")
        yield name
    finally:
        os.close(directory)
