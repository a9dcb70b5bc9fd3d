"""Names for Unix-domain sockets that the kernel takes, however long their paths are (unix(7))."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LONGEST_NAME_BYTES: Final = 107
"""What fits into a socket address beside the zero at its end."""


@contextlib.contextmanager
def short_name(path: str) -> Iterator[str]:
    """The path itself, or a name of the same file through its open directory.

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
