"""Where the training thread is, for whoever asks why it does not get on (`dtd.core.progress`)."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import FrameType
from typing import Final

import dtd

MAX_WHERE_CHARACTERS: Final = 200
TELLING_S: Final = 1.0
"""A stall this long is worth saying where."""

_LIBRARIES: Final = ("site-packages", "dist-packages", "torch")
_DTD: Final = Path(dtd.__file__).parent
_TASKS: Final = _DTD / "tasks"  # count as the user's own
_STANDARD: Final = Path(sysconfig.get_path("stdlib"))


def where_stalled(thread_ident: int | None, stalled_s: float) -> str:
    """`where_is`; empty until a stall has lasted for a while."""
    return where_is(thread_ident) if stalled_s > TELLING_S else ""


def where_is(thread_ident: int | None) -> str:
    """The line that a thread executes: the innermost of the user's own, if there is one.

    Args:
        thread_ident: None when there is no thread.

    Returns:
        Like `task.py:4 in loss`, at most 200 characters; empty when the thread is over.
    """
    frame = sys._current_frames().get(thread_ident or 0)  # noqa: SLF001 - its documented name
    if frame is None:
        return ""
    innermost = frame
    while frame is not None and _is_library(frame):
        frame = frame.f_back
    return _in_words(frame or innermost)[:MAX_WHERE_CHARACTERS]


def _is_library(frame: FrameType) -> bool:
    file = Path(frame.f_code.co_filename)
    if not file.is_absolute():
        return frame.f_code.co_filename.startswith("<")
    if file.is_relative_to(_TASKS):
        return False
    installed = any(name in file.parts for name in _LIBRARIES)
    return installed or file.is_relative_to(_DTD) or file.is_relative_to(_STANDARD)


def _in_words(frame: FrameType) -> str:
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
