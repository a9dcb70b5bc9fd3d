"""Whether a link codes its payloads: where the link is waited for, and processors are free.

Pure: it computes with figures that its link has measured, and has no clock.  A byte takes 1 / rate
on the link, and its ratio of that when it is coded, unless coding itself takes longer.  The
processor time of coding is free where processors are idle, and otherwise taken from the training:
the share of it in which the coder's thread stood in the queue for a processor says which.
"""

from __future__ import annotations

from typing import Final, Literal

Mode = Literal["auto", "on", "off"]

BEGIN_GAIN: Final = 1.03
"""Coding begins if it makes the link this many times as fast, and ends when it gains nothing."""

PROBES: Final = 4
"""Chunks that are coded for a measurement of the coder."""

PROBE_EVERY: Final = 64
"""While coding does not pay, it is measured anew after so many chunks: processors may be free."""

_ASSUMED_RATIO: Final = 0.85
_ASSUMED_S: Final = 1.0e-9
_BOTH_SIDES: Final = 1.5
"""Decoding takes half the time of encoding."""
_LEAST_CONTENTION: Final = 0.25
_LINK_MEMORY: Final = 0.7
_CODER_MEMORY: Final = 0.95


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
        self._passed = PROBE_EVERY
        self._measure_anew()

    def _measure_anew(self) -> None:
        self._plain_bytes = self._coded_bytes = 0.0
        self._wall_s = self._cpu_s = self._queued_s = 0.0
        self._asked = self._measured = 0

    def wants(self) -> bool:
        """Whether to code the next payload, perhaps as a probe."""
        if self.codes or not self._is_auto or not self._busy_s:
            return self.codes
        self._passed += 1
        if self._passed >= PROBE_EVERY and self._gain(if_free=True) >= BEGIN_GAIN:
            self._passed = 0
            self._measure_anew()
        self._asked += 1
        return self._passed < PROBE_EVERY and self._asked <= PROBES

    def sent(self, acked_bytes: int, busy_s: float) -> None:
        """The other side has acknowledged bytes, while the link was busy for so long."""
        self._acked_bytes = self._acked_bytes * _LINK_MEMORY + acked_bytes
        self._busy_s = self._busy_s * _LINK_MEMORY + busy_s
        self._decide()

    def coded(
        self, plain_bytes: int, coded_bytes: int, *, wall_s: float, cpu_s: float, queued_s: float
    ) -> None:
        """A payload was coded.

        Args:
            plain_bytes: its length.
            coded_bytes: length of what travels.
            wall_s: how long that took.
            cpu_s: how much of it the thread computed.
            queued_s: how much of it the thread could have computed, and had no processor.
        """
        self._plain_bytes = self._plain_bytes * _CODER_MEMORY + plain_bytes
        self._coded_bytes = self._coded_bytes * _CODER_MEMORY + coded_bytes
        self._wall_s = self._wall_s * _CODER_MEMORY + wall_s
        self._cpu_s = self._cpu_s * _CODER_MEMORY + cpu_s
        self._queued_s = self._queued_s * _CODER_MEMORY + queued_s
        self._measured += 1
        self._decide()

    def _decide(self) -> None:
        if self._is_auto and self._measured >= PROBES:
            self.codes = self._gain() >= (1.0 if self.codes else BEGIN_GAIN)

    def _gain(self, *, if_free: bool = False) -> float:
        """How many times as fast the link is with coding as without it; or would be at best."""
        if not self._busy_s or not self._acked_bytes:
            return 0.0
        ratio, wall_s, cpu_s = _ASSUMED_RATIO, _ASSUMED_S, _ASSUMED_S
        if self._plain_bytes:
            ratio = self._coded_bytes / self._plain_bytes
            wall_s, cpu_s = self._wall_s / self._plain_bytes, self._cpu_s / self._plain_bytes
        link_s = self._busy_s / self._acked_bytes
        contention = 0.0 if if_free else self._queued_s / max(self._cpu_s, 1e-9)
        if if_free:
            wall_s = cpu_s
        taken_s = _BOTH_SIDES * cpu_s * max(contention, _LEAST_CONTENTION)
        return link_s / (max(link_s * ratio, wall_s) + taken_s)
