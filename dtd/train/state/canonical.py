"""The bytes of values that are hashed: equal values give equal bytes.  Without torch."""

from __future__ import annotations

import json
from typing import Any


def canonical_json(value: Any) -> bytes:
    """JSON that is the same for equal values; strict."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()
