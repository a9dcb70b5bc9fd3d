"""Whether to code payloads: where the link is waited for, and only while steps are shorter for it.

Pure: it computes with figures that its link has measured, and has no clock.

`LinkChoice` is for one link.  A byte takes 1 / rate on the link, and its ratio of that when it is
coded, unless coding itself takes longer: so fast links cost nothing.

`StepTrial` is for the links of one generation.  What coding takes from the training, on this host
and on the others, no figure of a link shows: steps show it.  Coded and plain steps take turns, and
pairs of them are compared in a sequential test, until one way has won by so many pairs that chance
is unlikely.  Turns follow from the number of steps, so all ranks code in the same steps, and come
to the same result unless it hardly matters.
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

WARM_UP_STEPS: Final = 2
"""The first steps of a generation are plain, and not compared."""

LEAD: Final = 4
"""By so many pairs of steps one way has won: against odds of 7 : 3 it does so once in 30 trials."""

TRIAL_STEPS: Final = 256
"""After so many steps a new trial begins; an even number."""

_ASSUMED_RATIO: Final = 0.85
_LEAST_CODER_S: Final = 1.0e-9
"""A byte is not counted as coded and decoded faster: links of 10 Gbit/s need no trial."""
_LINK_MEMORY: Final = 0.7
_CODER_MEMORY: Final = 0.95


def coded_s(link_s: float, ratio: float, coder_s: float) -> float:
    """Return the time for a byte of a link that codes."""
    return max(link_s * ratio, coder_s, _LEAST_CODER_S)


class LinkChoice:
    """The choice of one link, by its rate and the coder's.

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
        self._plain_bytes = self._coded_bytes = self._coder_s = 0.0
        self._asked = self._measured = 0

    def wants(self) -> bool:
        """Whether to code the next payload, perhaps as a probe."""
        if self.codes or not self._is_auto or not self._busy_s:
            return self.codes
        self._passed += 1
        if self._passed >= PROBE_EVERY and self._gain() >= BEGIN_GAIN:
            self._passed = 0
            self._measure_anew()
        self._asked += 1
        return self._passed < PROBE_EVERY and self._asked <= PROBES

    def sent(self, acked_bytes: int, busy_s: float) -> None:
        """The other side has acknowledged bytes, while the link was busy for so long."""
        self._acked_bytes = self._acked_bytes * _LINK_MEMORY + acked_bytes
        self._busy_s = self._busy_s * _LINK_MEMORY + busy_s
        self._decide()

    def coded(self, plain_bytes: int, coded_bytes: int, coder_s: float) -> None:
        """A payload was coded."""
        self._plain_bytes = self._plain_bytes * _CODER_MEMORY + plain_bytes
        self._coded_bytes = self._coded_bytes * _CODER_MEMORY + coded_bytes
        self._coder_s = self._coder_s * _CODER_MEMORY + coder_s
        self._measured += 1
        self._decide()

    def _decide(self) -> None:
        if self._is_auto and self._measured >= PROBES:
            gain = self._gain(self._coder_s / self._plain_bytes)
            self.codes = gain >= (1.0 if self.codes else BEGIN_GAIN)

    def _gain(self, coder_s: float = 0.0) -> float:
        """How many times as fast the link is with a coder that takes so long for each byte."""
        if not self._busy_s or not self._acked_bytes:
            return 0.0
        ratio = self._coded_bytes / self._plain_bytes if self._plain_bytes else _ASSUMED_RATIO
        link_s = self._busy_s / self._acked_bytes
        return link_s / coded_s(link_s, ratio, coder_s)


class StepTrial:
    """The choice for the steps of one generation, by their length.

    Attributes:
        codes: chunks of the present step may be coded.
    """

    def __init__(self) -> None:
        self.codes = False
        self._number = -WARM_UP_STEPS - 1
        self._began_s = 0.0
        self._step_s = {True: 0.0, False: 0.0}
        self._is_fair = False
        self._lead = 0
        self._is_open = True

    def next_step(self, now_s: float, *, coded: bool) -> None:
        """A step begins, as the one before it ends.

        Args:
            now_s: the time.
            coded: most payloads of the step that ends were coded; without that, a pair says
                nothing.
        """
        self._step_s[self.codes] = now_s - self._began_s
        self._is_fair = coded if self.codes else self._is_fair
        self._began_s = now_s
        self._number += 1
        if self._number <= 0:
            return
        if self._is_open and self._number % 2 == 0 and self._is_fair:
            self._compare()
        if self._number % TRIAL_STEPS == 0:
            self._lead, self._is_open = 0, True
        if self._is_open:
            self.codes = self._number.bit_count() % 2 == 1

    def _compare(self) -> None:
        """Count a pair; with the last one `codes` is what has won."""
        self._lead += 1 if self._step_s[True] < self._step_s[False] else -1
        if abs(self._lead) == LEAD:
            self.codes, self._is_open = self._lead > 0, False
