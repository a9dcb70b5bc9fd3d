"""Whether a link codes its payloads: where the link is waited for, and processors are free.

Pure: it computes with figures that its link has measured, and has no clock.  A byte takes 1 / rate
on the link, and its ratio of that when it is coded, unless coding itself takes longer.  The
processor time of coding is free where processors are idle, and otherwise taken from the training:
a thread that had to wait for a processor took longer than it computed.
"""

from __future__ import annotations

from typing import Final, Literal

Mode = Literal["auto", "on", "off"]

BEGIN_GAIN: Final = 1.03
"""Coding begins if it makes the link this many times as fast, and ends when it gains nothing."""

PROBES: Final = 4
"""Chunks that are coded before the measured figures count."""

PROBE_EVERY: Final = 64
"""While coding does not pay, one chunk in so many is coded: processors may be free again."""

_ASSUMED_RATIO: Final = 0.85
_ASSUMED_S: Final = 1.0e-9
_BOTH_SIDES: Final = 1.5
"""Decoding takes half the time of encoding."""
_LEAST_CONTENTION: Final = 0.25
_LINK_MEMORY: Final = 0.7
_CODER_MEMORY: Final = 0.9


class CodingChoice:
    """The choice of one link.

    Args:
        mode: `on` always codes, `off` never; `auto` as the figures say.
        same_host: both ends are on one host, where `auto` never codes.

    Attributes:
        codes: coding pays.
    """

    def __init__(self, mode: Mode, *, same_host: bool) -> None:
        self.codes = mode == "on"
        self._is_auto = mode == "auto" and not same_host
        self._acked_bytes = self._busy_s = 0.0
        self._plain_bytes = self._coded_bytes = self._wall_s = self._cpu_s = 0.0
        self._probes = 0
        self._passed = 0

    def wants(self) -> bool:
        """Whether to code the next payload, perhaps as a probe."""
        if self.codes or not self._is_auto or not self._busy_s:
            return self.codes
        self._passed += 1
        is_due = self._probes < PROBES or self._passed >= PROBE_EVERY
        if not is_due or self._gain(contention=_LEAST_CONTENTION) < BEGIN_GAIN:
            return False
        self._passed = 0
        return True

    def sent(self, acked_bytes: int, busy_s: float) -> None:
        """The other side has acknowledged bytes, while the link was busy for so long."""
        self._acked_bytes = self._acked_bytes * _LINK_MEMORY + acked_bytes
        self._busy_s = self._busy_s * _LINK_MEMORY + busy_s
        self._decide()

    def coded(self, plain_bytes: int, coded_bytes: int, *, wall_s: float, cpu_s: float) -> None:
        """A payload was coded.

        Args:
            plain_bytes: its length.
            coded_bytes: length of what travels.
            wall_s: how long that took.
            cpu_s: how much of it the thread computed.
        """
        self._plain_bytes = self._plain_bytes * _CODER_MEMORY + plain_bytes
        self._coded_bytes = self._coded_bytes * _CODER_MEMORY + coded_bytes
        self._wall_s = self._wall_s * _CODER_MEMORY + wall_s
        self._cpu_s = self._cpu_s * _CODER_MEMORY + cpu_s
        self._probes += 1
        self._decide()

    def _decide(self) -> None:
        if self._is_auto and self._probes >= PROBES:
            gain = self._gain(contention=self._wall_s / max(self._cpu_s, 1e-9) - 1)
            self.codes = gain >= (1.0 if self.codes else BEGIN_GAIN)

    def _gain(self, contention: float) -> float:
        """How many times as fast the link is with coding as without it."""
        if not self._busy_s or not self._acked_bytes:
            return 0.0
        ratio, wall_s, cpu_s = _ASSUMED_RATIO, _ASSUMED_S, _ASSUMED_S
        if self._plain_bytes:
            ratio = self._coded_bytes / self._plain_bytes
            wall_s, cpu_s = self._wall_s / self._plain_bytes, self._cpu_s / self._plain_bytes
        link_s = self._busy_s / self._acked_bytes
        taken_s = _BOTH_SIDES * cpu_s * max(contention, _LEAST_CONTENTION)
        return link_s / (max(link_s * ratio, wall_s) + taken_s)
