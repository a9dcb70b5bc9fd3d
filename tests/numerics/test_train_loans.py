"""Under which numbers a training run lends its buckets; the in-process ring itself lends nothing.

A borrower believes what it has read only if the number is still the one that came with the chunk,
and that one is fixed when the step is opened.
"""

from __future__ import annotations

import pytest

from dtd.errors import RingBroken

pytestmark = pytest.mark.numerics


class Watched:
    """A collective that notes the loan whenever a step is opened or a bucket is handed over."""

    def __init__(self, inner, notes, *, cut_at=None) -> None:
        self._inner, self._notes, self._cut_at = inner, notes, cut_at
        self._lent = None

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def open_step(self, step, buckets) -> None:
        self._lent = next((one.home.memory for one in buckets if one.home is not None), None)
        if self._lent is not None:
            self._notes.append(("open", step, self._lent.version))
        self._inner.open_step(step, buckets)

    def start(self, bucket, *done) -> None:
        step = self._inner.nodes[0].machine.step
        self._notes.append(("start", step, self._lent.version))
        if step == self._cut_at:
            raise RingBroken("cut by the test")
        self._inner.start(bucket, *done)


class Evaluated:
    """A task that is evaluated, which comes between opening a step and filling its buckets."""

    @staticmethod
    def of(regression):
        class Task(regression):
            def eval_dataset(self):
                return self.rows

        return Task()


def test_a_step_has_one_loan_and_no_two_attempts_have_the_same(arena, regression) -> None:
    spec = arena.spec(job={"steps": 5}, train={"eval_every": 1})
    rank = arena.start(Evaluated.of(regression), spec)
    rank.run.adopt_local(0, 0)
    notes: list[tuple[str, int, int]] = []
    for generation, cut_at in ((1, 2), (2, 2), (3, None)):
        arena.generation(
            [rank],
            generation=generation,
            wrap=lambda _, inner, cut_at=cut_at: Watched(inner, notes, cut_at=cut_at),
        )
    assert rank.outcome is not None
    opened = [(step, loan) for what, step, loan in notes if what == "open"]
    assert [step for step, _ in opened] == [0, 1, 2, 2, 2, 3, 4]
    loans = [loan for _, loan in opened]
    assert sorted(set(loans)) == loans
    assert {(step, loan) for what, step, loan in notes if what == "start"} == set(opened)
