"""The paths of a job's data in the process that trains: `dtd.data_path`.

The worker leaves them in the environment, so that processes which load data, and scripts that are
started rather than called, find them as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dtd.errors import TaskError
from dtd.text.json_reader import read_json

VARIABLE: Final = "DTD_DATA"
_MAX_BYTES: Final = 1 << 20


def data_path(name: str) -> Path:
    """Return the path of the data that the job file's `[data]` calls by this name.

    It is a directory or a file, as at the path in the job file, to be read only.

    Raises:
        TaskError: the job has no such data.
    """
    try:
        paths = read_json(os.environ.get(VARIABLE, "{}").encode(), max_bytes=_MAX_BYTES)
        known = {str(key): str(path) for key, path in paths.items()}
    except (ValueError, AttributeError):
        raise TaskError(
            f"{VARIABLE} is not a JSON object", remedy=f"""set it as in {{"{name}": "/PATH"}}"""
        ) from None
    if name not in known:
        among = f"; it has {', '.join(sorted(known))}" if known else ""
        raise TaskError(
            f"the job has no data {name!r}{among}",
            remedy=f'add {name} = "/PATH" to its [data]; for a process that trains alone, set'
            f""" {VARIABLE}='{{"{name}": "/PATH"}}'""",
        )
    return Path(known[name])


def in_environment(paths: Mapping[str, str | Path]) -> dict[str, str]:
    """The variables by which `data_path` finds these paths."""
    return {VARIABLE: json.dumps({name: str(path) for name, path in paths.items()})}
