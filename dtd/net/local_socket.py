"""The coordinator's socket for its own host: bound in its own directory, and called with care.

Both sides look at what the kernel says of the other one.  The calling side does, because whoever
can put a socket of their own in the place of the coordinator's would command workers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path
from typing import Final

from dtd.address import SocketPath
from dtd.errors import ConfigError, ErrorCode, ProtocolError
from dtd.net.socket_names import short_name
from dtd.security.local_users import ROOT_UID, peer_uid

_PROBE_S: Final = 1.0
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def bound_socket(at: SocketPath) -> socket.socket:
    """A socket that is bound there, and answers nobody yet; one that nobody serves any more goes.

    Who may enter the directory may call, and is told apart by what the kernel says of him.

    Raises:
        ConfigError: it cannot be bound, or somebody listens there.
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
            remedy="look at its directory, or name another file with --socket",
        ) from error
    except BaseException:
        made.close()
        raise
    return made


def remove_socket(at: SocketPath) -> None:
    """Take the socket's file away: nobody shall wait for an answer there."""
    with contextlib.suppress(OSError):
        Path(at.path).unlink()


def call(at: SocketPath, timeout_s: float) -> socket.socket:
    """A connection to whoever listens there, who is somebody to be followed.

    Raises:
        OSError: nobody listens, or it cannot be reached.
        ProtocolError: REFUSED, it is somebody else's socket.
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
    """Whether the user who listens there may be the coordinator's.

    That is root, our own user, or the owner of the socket's directory, if nobody but those three
    can have put it where it is.

    Raises:
        OSError: the directory cannot be looked at.
        ProtocolError: REFUSED, it is somebody else.
    """
    trusted = (ROOT_UID, os.geteuid())
    if uid in trusted:
        return
    why = _may_be_anybodys(Path(at.path).parent, uid, trusted)
    if why:
        raise ProtocolError(
            ErrorCode.REFUSED,
            f"uid {uid} listens at {at}, which may be anybody: {why}",
            remedy="if that is the coordinator's user, let it have a directory of its own below"
            " directories of root's; else find out who took its place",
        )


def _may_be_anybodys(directory: Path, uid: int, trusted: tuple[int, ...]) -> str:
    """Why a directory may have been put there by anybody; empty when only these users can have.

    Raises:
        OSError: it cannot be looked at.
    """
    behind = directory.resolve()
    if behind.stat().st_uid != uid:
        return f"{behind} is not that user's"
    for place in (directory, *directory.parents, behind, *behind.parents):
        status = place.lstat()
        is_link = stat.S_ISLNK(status.st_mode)  # whose mode says nothing
        if not is_link and status.st_mode & _WRITABLE_BY_OTHERS:
            return f"others can write {place}"
        if status.st_uid not in (trusted if is_link else (*trusted, uid)):
            return f"{place} belongs to uid {status.st_uid}"
    return ""


def _open_to_all(at: SocketPath) -> None:
    """Whoever gets as far as the socket may call; what another one has put there is left alone.

    Raises:
        OSError: it is not there any more, or it is not ours.
    """
    descriptor = os.open(at.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "another user has taken its place")
        Path(f"/proc/self/fd/{descriptor}").chmod(0o666)
    finally:
        os.close(descriptor)


def _make_room(at: SocketPath) -> None:
    """Remove a socket that a dead coordinator has left.

    Raises:
        OSError: it cannot be removed.
        ConfigError: somebody listens there, or something else lies there.
    """
    path = Path(at.path)
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise ConfigError(
            f"{path} is no socket", remedy="move it away: the coordinator's goes there"
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
            pass  # its queue is full: somebody is there
    raise ConfigError(
        f"another process listens at {at}",
        remedy="stop that one first, or name another file with --socket",
    )
