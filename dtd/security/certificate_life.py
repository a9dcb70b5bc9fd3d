"""How long a certificate lives, and when it is renewed.

One is renewed once two thirds of its life are over, of 30 days after 20: a host that is away for
less than the rest comes back by itself.  After its end there is no grace; a host that was away for
longer joins again.
"""

from __future__ import annotations

from typing import Final

DAY_S: Final = 86400.0
LIFE_DAYS: Final = 30
RENEWED_AFTER: Final = 2 / 3
WARN_BEFORE_DAYS: Final = 7
"""Days before its end at which it should have been renewed long ago."""


def renewed_from_s(issued_s: float, expires_s: float, *, life_days: float) -> float:
    """Unix time from which a certificate is renewed."""
    return issued_s + RENEWED_AFTER * min(expires_s - issued_s, life_days * DAY_S)
