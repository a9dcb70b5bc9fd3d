"""Where payloads are coded: by the rates of link and coder, and while steps are shorter for it."""

from __future__ import annotations

import pytest

from dtd.exchange.schedule.coding_choice import (
    LEAD,
    PROBE_EVERY,
    PROBES,
    TRIAL_STEPS,
    WARM_UP_STEPS,
    LinkChoice,
    StepTrial,
)

MB = 1_000_000
GIGABIT = 117 * MB
FREE_S, BUSY_S = 1e-9, 20e-9


class MeasuredLink:
    """A choice, and the link and coder that it sees."""

    def __init__(self, bytes_per_s, *, ratio=0.84, coder_s=FREE_S, mode="auto", same_host=False):
        self.choice = LinkChoice(mode, same_host=same_host)
        self.bytes_per_s, self.ratio, self.coder_s = bytes_per_s, ratio, coder_s

    def sends(self, chunks):
        """Send chunks of 1 MB; returns how many of them were coded."""
        coded = 0
        for _ in range(chunks):
            if self.choice.wants():
                coded += 1
                self.choice.coded(MB, int(self.ratio * MB), MB * self.coder_s)
            self.choice.sent(MB, MB / self.bytes_per_s)
        return coded


@pytest.mark.parametrize(
    ("bytes_per_s", "ratio", "coder_s", "codes"),
    [
        (GIGABIT, 0.84, FREE_S, True),
        (GIGABIT, 0.69, FREE_S, True),
        (GIGABIT, 0.84, BUSY_S, False),
        (GIGABIT / 10, 0.84, BUSY_S, True),
        (10 * GIGABIT, 0.84, FREE_S, False),
        (5 * GIGABIT, 0.84, FREE_S, True),
        (10 * GIGABIT, 0.69, FREE_S / 4, False),
        (GIGABIT / 10, 0.999, FREE_S, False),
    ],
)
def test_a_link_codes_where_it_is_waited_for(bytes_per_s, ratio, coder_s, codes):
    link = MeasuredLink(bytes_per_s, ratio=ratio, coder_s=coder_s)
    link.sends(50)
    assert link.choice.codes == codes


def test_nothing_is_coded_before_the_link_is_known():
    assert not LinkChoice("auto", same_host=False).wants()


def test_a_fast_link_codes_nothing_at_all():
    assert MeasuredLink(10 * GIGABIT).sends(10 * PROBE_EVERY) == 0


def test_a_busy_host_pays_for_few_probes_and_notices_that_it_is_free():
    link = MeasuredLink(GIGABIT, coder_s=BUSY_S)
    assert link.sends(10 * PROBE_EVERY) <= 10 * PROBES
    link.coder_s = FREE_S
    link.sends(2 * PROBE_EVERY)
    assert link.choice.codes
    link.coder_s = BUSY_S
    link.sends(50)
    assert not link.choice.codes


def test_a_gain_between_the_limits_changes_nothing():
    ended = MeasuredLink(GIGABIT, coder_s=BUSY_S)
    begun = MeasuredLink(GIGABIT)
    for link in (ended, begun):
        link.sends(50)
        link.ratio, link.coder_s = 0.98, FREE_S
        link.sends(30)
    assert (ended.choice.codes, begun.choice.codes) == (False, True)


@pytest.mark.parametrize(("mode", "codes"), [("on", True), ("off", False)])
def test_on_and_off_do_not_depend_on_figures(mode, codes):
    link = MeasuredLink(GIGABIT / 10 if mode == "off" else 50 * GIGABIT, mode=mode)
    assert link.sends(20) == 20 * codes


def test_links_within_a_host_are_not_coded_unless_the_job_says_so():
    assert MeasuredLink(GIGABIT / 10, same_host=True).sends(50) == 0
    assert MeasuredLink(GIGABIT, mode="on", same_host=True).sends(5) == 5


class Steps:
    """Steps of a rank, whose lengths depend on whether they are coded."""

    def __init__(self, *, plain_s, coded_s, first=0):
        self.trial = StepTrial()
        self.plain_s, self.coded_s = plain_s, coded_s
        self.now_s, self.coded = 100.0, False
        self.first, self.number = first, -1

    def run(self, steps):
        """Whether each of them was coded; the links do so from step `first` on."""
        return [self.step() for _ in range(steps)]

    def step(self):
        self.trial.next_step(self.now_s, coded=self.coded)
        self.number += 1
        self.coded = self.trial.codes and self.number >= self.first
        self.now_s += self.coded_s if self.coded else self.plain_s
        return self.coded


LONGEST_TRIAL = WARM_UP_STEPS + 2 * LEAD


@pytest.mark.parametrize(("coded_s", "codes"), [(0.9, True), (1.1, False)])
def test_steps_are_coded_if_that_makes_them_shorter(coded_s, codes):
    steps = Steps(plain_s=1.0, coded_s=coded_s)
    trial, then = steps.run(LONGEST_TRIAL), steps.run(TRIAL_STEPS - LONGEST_TRIAL)
    assert sum(trial) == LEAD
    assert set(then) == {codes}


def test_a_coded_step_is_compared_with_a_plain_one_beside_it():
    assert Steps(plain_s=1.0, coded_s=1.0).run(LONGEST_TRIAL) == [
        *(False, False),
        *(False, True, True, False, True, False, False, True),
    ]


def test_what_coding_costs_where_it_does_not_pay_is_bounded():
    steps = Steps(plain_s=1.0, coded_s=2.0)
    assert sum(steps.run(20 * TRIAL_STEPS)) <= LEAD * 20


def test_a_new_trial_notices_that_processors_are_busy_or_free():
    steps = Steps(plain_s=1.0, coded_s=0.9)
    steps.run(TRIAL_STEPS)
    steps.coded_s = 1.1
    steps.run(2 * TRIAL_STEPS)
    assert not steps.trial.codes
    steps.coded_s = 0.9
    steps.run(TRIAL_STEPS)
    assert steps.trial.codes


def test_a_step_that_a_checkpoint_has_made_longer_decides_nothing():
    steps = Steps(plain_s=1.0, coded_s=1.1)
    steps.run(WARM_UP_STEPS)
    steps.now_s += 60.0
    steps.run(4 * LEAD)
    assert not steps.trial.codes


def test_steps_of_four_kinds_in_turn_are_not_taken_for_a_gain():
    steps = Steps(plain_s=1.0, coded_s=1.01)
    coded = 0
    for number in range(TRIAL_STEPS):
        coded += steps.step()
        steps.now_s += (0.0, 0.3, 0.1, 0.6)[number % 4]
    assert coded <= TRIAL_STEPS / 2


def test_steps_in_which_the_links_code_nothing_are_not_compared():
    late = Steps(plain_s=1.0, coded_s=1.1, first=50)
    late.run(50)
    assert sum(late.run(TRIAL_STEPS - 50 + WARM_UP_STEPS)) == LEAD
    assert not late.trial.codes


def test_all_ranks_code_in_the_same_steps_of_a_trial():
    one, other = Steps(plain_s=1.0, coded_s=0.9), Steps(plain_s=1.0, coded_s=1.1, first=4)
    undecided = 4 + 2 * LEAD
    pairs = zip(one.run(undecided), other.run(undecided), strict=True)
    assert not [1 for number, (a, b) in enumerate(pairs) if number in range(4, 10) and a != b]
