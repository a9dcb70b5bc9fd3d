"""Offsets of clocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.observe.profile.trace import Reading, offset_of

spans = st.floats(0, 10)


@given(
    ahead=st.floats(-1e6, 1e6),
    trips=st.lists(st.tuples(st.floats(0, 1e6), spans, spans), min_size=1, max_size=10),
)
def test_the_true_offset_is_within_the_uncertainty(ahead, trips):
    readings = [
        Reading(sent, sent + there + back, sent + there + ahead) for sent, there, back in trips
    ]
    found = offset_of(readings)
    assert abs(found.seconds - ahead) <= found.uncertainty_s + 1e-6
    shortest = min(there + back for _, there, back in trips)
    assert found.uncertainty_s == pytest.approx(shortest / 2, abs=1e-6)
