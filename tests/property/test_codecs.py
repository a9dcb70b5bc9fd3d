"""Codecs through steps that are undone, skipped and redone: the same bytes as without.

A plan is drawn: ranks, sizes of tensors, and for each step what happens before it is committed.
The run with all of that must end as the run without it does, on every rank, to the bit.
"""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from dtd.strategy.codec.int8 import Int8
from dtd.strategy.codec.sign import Sign
from dtd.strategy.codec.sparse import RandomK, TopK
from tests.numerics.coded_ring import SEGMENTED, WHOLE, exchange, layout_of, same

STEPS = 4

SPARSE = st.fixed_dictionaries(
    {
        "density": st.sampled_from([0.001, 0.01, 0.3]),
        "momentum": st.sampled_from([0.0, 0.9]),
        "warmup_steps": st.integers(0, STEPS + 1),
    }
)
CODECS = st.one_of(
    st.just(Int8),
    st.just(Sign),
    SPARSE.map(lambda options: lambda: TopK(**options)),
    SPARSE.map(lambda options: lambda: RandomK(**options, seed=5)),
)
SHAPES = st.one_of(
    st.tuples(st.integers(1, 40)),
    st.tuples(st.integers(1, 70), st.integers(1, 70)),
    st.tuples(st.integers(9, 16), st.integers(9, 16), st.just(3), st.just(3)),
)
UNDONE = st.dictionaries(
    st.integers(0, STEPS - 1),
    st.lists(st.sampled_from([None, math.nan, math.inf]), min_size=1, max_size=3),
    min_size=1,
)


@settings(max_examples=25, deadline=None)
@given(
    codec=CODECS,
    shapes=st.lists(st.lists(SHAPES, min_size=1, max_size=3), min_size=1, max_size=2),
    world=st.integers(1, 4),
    chunk_bytes=st.sampled_from([SEGMENTED, WHOLE]),
    undone=UNDONE,
)
def test_what_was_undone_leaves_no_trace(codec, shapes, world, chunk_bytes, undone) -> None:
    layouts = [layout_of(*one) for one in shapes]
    run = {"world": world, "steps": STEPS, "chunk_bytes": chunk_bytes}
    undisturbed = exchange(codec, layouts, **run)
    assert same(undisturbed, exchange(codec, layouts, **run, undone=undone))
