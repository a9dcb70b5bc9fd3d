"""One fault that was injected: what, into whom, when, and what its victims were doing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Injection:
    """A fault.

    Attributes:
        kind: its name among `scripts.chaosrun.faults.KINDS`.
        victims: daemons to whom something may happen because of it.
        at_s: when it began (seconds since the epoch).
        over_s: when its cause was removed; infinite while it lasts.
        back_s: when its victims had all got over it; infinite until then.
        generation: newest generation with one of the victims in it at that time; 0 is none.
        phase: what the victim was doing, as far as its log tells.
        note: anything else worth telling.
        pids: processes that end because of it.
    """

    kind: str
    victims: tuple[str, ...]
    at_s: float
    over_s: float = math.inf
    back_s: float = math.inf
    generation: int = 0
    phase: str = ""
    note: str = ""
    pids: set[int] = field(default_factory=set)
