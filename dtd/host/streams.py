"""Standard output and standard error of dtd's programs.

A terminal or a locale need not know all characters of Unicode (`LC_ALL=C`, latin-1).  `fit_streams`
has what a stream lacks spelt otherwise, so that no command fails because of it: the blocks of bars
and curves as ASCII of the same width, all else by its number.

A worker's own streams are copies, since its jobs take descriptors 1 and 2.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from typing import Final, TextIO

_SPELT: Final = "dtd.spelt"
_ASCII: Final = str.maketrans(
    {
        **dict(zip("▁▂▃▄▅▆▇█", "..--==##", strict=True)),
        **dict(zip("░▒▓", "-=+", strict=True)),
        **dict(zip("…·", "~.", strict=True)),
    }
)
_STDOUT: Final = 1
_STDERR: Final = 2


def fit_streams() -> None:
    """From now on stdout and stderr take any text; programs call it before they print anything."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_SPELT)


def is_unicode(stream: TextIO) -> bool:
    """Whether a stream takes all characters as they are."""
    encoding = getattr(stream, "encoding", None)
    return encoding is None or codecs.lookup(encoding).name.startswith("utf")


def own_streams() -> tuple[TextIO, TextIO]:
    """Standard output for the log alone, and standard error for the last output of this process.

    What others write to descriptor 1 goes to stderr; in a worker those others are the job's own
    libraries and processes, and a job replaces both descriptors.  `hand_over_streams` undoes it for
    the program that takes this one's place.
    """
    stdout, stderr = (
        os.fdopen(os.dup(number), "w", encoding=stream.encoding, errors=_SPELT)
        for number, stream in ((_STDOUT, sys.stdout), (_STDERR, sys.stderr))
    )
    os.dup2(_STDERR, _STDOUT)
    return stdout, stderr


def hand_over_streams(stdout: TextIO, stderr: TextIO) -> None:
    """Descriptors 1 and 2 are standard output and standard error again."""
    for number, stream in ((_STDOUT, stdout), (_STDERR, stderr)):
        with contextlib.suppress(OSError, ValueError):  # a log must not stop training
            stream.flush()
        os.dup2(stream.fileno(), number)


def _spell(error: UnicodeError) -> tuple[str | bytes, int]:
    """An error handler for encoding (codecs.register_error)."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_ASCII)
    return text.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error(_SPELT, _spell)
