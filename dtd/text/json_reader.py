"""The one reader of JSON that another process, or a user's file, has brought.

A caller bounds the size; nesting beyond what Python's parser follows is an error of the text, as
any other, and not a RecursionError, which few expect.
"""

from __future__ import annotations

import json
from typing import Any


def read_json(content: bytes, *, max_bytes: int) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is larger, in another encoding, nested too deeply, or no JSON.
    """
    if len(content) > max_bytes:
        raise ValueError(f"it has {len(content)} bytes, more than {max_bytes}")
    try:
        return json.loads(content.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
