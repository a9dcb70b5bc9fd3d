"""Where the training thread is, and whether something compiles: read off the stacks of Python.

For whoever asks why a thread does not get on (`dtd.core.progress`); decides nothing.
"""

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

_COMPILERS: Final = (
    ("_dynamo/convert_frame.py", ""),
    ("_inductor/compile_fx.py", "compile"),  # has wrappers too, which stay while its code runs
    ("triton/compiler/compiler.py", ""),
)
"""Files that are on a stack while a compiler works, and what the function's name holds."""


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


def is_compiling(but: int) -> bool:
    """Whether a compiler is on the stack of a thread of Python's.

    A backward pass on a GPU is compiled in a thread of its own.

    Args:
        but: ident of a thread that does not count.
    """
    stacks = sys._current_frames().items()  # noqa: SLF001 - its documented name
    return any(_compiles(frame) for ident, frame in stacks if ident != but)


def _compiles(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        for file, name in _COMPILERS:
            if code.co_filename.endswith(file) and name in code.co_name:
                return True
        frame = frame.f_back
    return False


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
