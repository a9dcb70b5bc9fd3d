"""Where the judge sees rounds begin: worked out another way than the product's, and the same."""

from itertools import product

import pytest

from dtd.engine.rounds import Rounds
from tests.sim.rows import Data, round_begin

STEPS = 70


@pytest.mark.parametrize(
    ("inner_steps", "start", "double_every", "longest"),
    [
        (length, start, double_every, factor * length)
        for length, start, (double_every, factor) in product(
            (1, 2, 3, 8), (0, 1, 7), ((0, 1), (10, 3), (5, 4), (16, 1))
        )
    ],
)
def test_judge_and_product_see_the_same_rounds(
    inner_steps: int, start: int, double_every: int, longest: int
) -> None:
    ours = Rounds(
        inner_steps=inner_steps, start_step=start, double_every=double_every, longest=longest
    )
    data = Data(
        length=50,
        batch=16,
        round_steps=inner_steps,
        local_from=start,
        double_every=double_every,
        longest=longest,
    )
    judged = [round_begin(data, step) for step in range(1, STEPS)]
    assert judged == [ours.begin(step) for step in range(1, STEPS)]
