"""Where a link codes its payloads: by its rate, the coder's, and how free processors are."""

from __future__ import annotations

import pytest

from dtd.net.coding_choice import PROBE_EVERY, PROBES, CodingChoice

MB = 1_000_000
GIGABIT = 117 * MB
FREE, BUSY = 0.05, 1.2


class Measured:
    """A choice, and the link and coder that it sees."""

    def __init__(self, bytes_per_s, *, ratio=0.84, waits=FREE, mode="auto", same_host=False):
        self.choice = CodingChoice(mode, same_host=same_host)
        self.bytes_per_s, self.ratio, self.waits = bytes_per_s, ratio, waits

    def sends(self, chunks):
        """Send chunks of 1 MB; returns how many of them were coded."""
        coded = 0
        for _ in range(chunks):
            if self.choice.wants():
                coded += 1
                cpu_s = MB / 1e9
                size = int(self.ratio * MB)
                queued_s = cpu_s * self.waits
                wall_s = cpu_s + queued_s
                self.choice.coded(MB, size, wall_s=wall_s, cpu_s=cpu_s, queued_s=queued_s)
            self.choice.sent(MB, MB / self.bytes_per_s)
        return coded


@pytest.mark.parametrize(
    ("bytes_per_s", "ratio", "waits", "codes"),
    [
        (GIGABIT, 0.84, FREE, True),
        (GIGABIT, 0.69, FREE, True),
        (GIGABIT, 0.84, BUSY, False),
        (GIGABIT / 10, 0.84, BUSY, True),
        (GIGABIT / 10, 0.84, FREE, True),
        (10 * GIGABIT, 0.84, FREE, False),
        (10 * GIGABIT, 0.69, FREE, False),
        (GIGABIT / 10, 0.999, FREE, False),
    ],
)
def test_a_link_codes_where_it_is_waited_for(bytes_per_s, ratio, waits, codes):
    link = Measured(bytes_per_s, ratio=ratio, waits=waits)
    link.sends(50)
    assert link.choice.codes == codes


def test_nothing_is_coded_before_the_link_is_known():
    assert not CodingChoice("auto", same_host=False).wants()


def test_a_fast_link_codes_nothing_at_all():
    assert Measured(20 * GIGABIT).sends(10 * PROBE_EVERY) == 0


def test_a_busy_host_pays_for_few_probes_and_notices_that_it_is_free():
    link = Measured(GIGABIT, waits=BUSY)
    assert link.sends(10 * PROBE_EVERY) <= 10 * PROBES
    link.waits = FREE
    link.sends(2 * PROBE_EVERY)
    assert link.choice.codes
    link.waits = BUSY
    link.sends(50)
    assert not link.choice.codes


def test_a_gain_between_the_limits_changes_nothing():
    ended = Measured(GIGABIT, waits=BUSY)
    ended.sends(50)
    begun = Measured(GIGABIT)
    begun.sends(50)
    for link in (ended, begun):
        link.ratio, link.waits = 0.94, FREE
        link.sends(30)
    assert (ended.choice.codes, begun.choice.codes) == (False, True)


@pytest.mark.parametrize(("mode", "codes"), [("on", True), ("off", False)])
def test_on_and_off_do_not_depend_on_figures(mode, codes):
    link = Measured(GIGABIT / 10 if mode == "off" else 50 * GIGABIT, mode=mode)
    assert link.sends(20) == 20 * codes


def test_links_within_a_host_are_not_coded_unless_the_job_says_so():
    assert Measured(GIGABIT / 10, same_host=True).sends(50) == 0
    assert Measured(GIGABIT, mode="on", same_host=True).sends(5) == 5
