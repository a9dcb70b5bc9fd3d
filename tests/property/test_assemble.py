"""Parts of any state, of any world and with any mirrors, make the checkpoint of the whole state."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtd.checkpoint.assemble import FoundPart, assemble
from dtd.checkpoint.format import verify
from dtd.engine.shards import united
from dtd.errors import CheckpointError
from tests.checkpoint_parts import random_state, write_part, write_whole
from tests.shards import held_shards


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1 << 20),
    world_size=st.integers(1, 6),
    mirrors=st.integers(0, 3),
    data=st.data(),
)
def test_parts_that_cover_a_state_assemble_to_the_same_bytes(
    seed: int, world_size: int, mirrors: int, data: st.DataObject
) -> None:
    state = random_state(seed)
    ranks = data.draw(st.lists(st.integers(0, world_size - 1), min_size=1, unique=True))
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        parts = [
            FoundPart(
                holder=f"w{rank}",
                path=write_part(
                    here / f"w{rank}", state, rank, world_size=world_size, mirrors=mirrors
                ),
            )
            for rank in ranks
        ]
        held = united(held_shards(rank, world_size, mirrors) for rank in ranks)
        if not held.is_whole:
            with pytest.raises(CheckpointError, match="lacks the shards") as caught:
                assemble(parts, here / "assembled")
            assert all(part.holder in caught.value.message for part in parts)
            assert not [*(here / "assembled").glob("*")]
            return
        path, _ = assemble(parts, here / "assembled")
        whole = write_whole(here / "whole", state, world_size=world_size)
        assert verify(path) == verify(whole)
        assert path.name == whole.name
        assert {one.name: one.read_bytes() for one in path.iterdir()} == {
            one.name: one.read_bytes() for one in whole.iterdir()
        }
        assert [*(here / "assembled").iterdir()] == [path]
