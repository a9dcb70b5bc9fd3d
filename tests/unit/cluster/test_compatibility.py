"""Workers that can train together, and the first difference of one that cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dtd.cluster.workers import compatibility
from dtd.wire import messages as m

WARMED = m.Warmed(
    job="j",
    dataset_rows=100,
    dataset_fingerprint="d",
    plan_digest="p",
    numerics_fingerprint="n",
    parameters=1,
    steps_total=10,
    held=(),
)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"dataset_rows": 7}, "7 rows, not 100"),
        ({"dataset_fingerprint": "e"}, "sampled rows"),
        ({"plan_digest": "q"}, "other parameters"),
        ({"numerics_fingerprint": "o"}, "o, not n"),
        ({"steps_total": 7}, "7 steps, not"),
        ({"environment": ("packages=einops 0.8",)}, "einops 0.8 for the job"),
    ],
)
def test_disagreement_names_what_differs(change: dict[str, Any], word: str) -> None:
    assert word in compatibility.disagreement(WARMED, replace(WARMED, **change))


def test_reference_is_what_most_say_and_of_equals_the_first() -> None:
    other = replace(WARMED, dataset_rows=7)
    assert compatibility.reference([other, WARMED, WARMED]) is WARMED
    assert compatibility.reference([other, WARMED]) is other
