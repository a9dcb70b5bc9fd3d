"""Rows of a stream by number, asked for in any order, and for any number of workers."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dtd.job import from_mapping
from dtd.train.data.stream import EPOCH_STEPS, InSequence, StreamRows
from dtd.train.plan import JobPlan


class Source:
    """Passes of so many items, by one of the three interfaces."""

    def __init__(self, length: int) -> None:
        self.length, self.at = length, 0

    def __iter__(self) -> Any:
        while self.at < self.length:
            self.at += 1
            yield self.at - 1
        self.at = 0


class Counted(Source):
    def __iter__(self) -> Any:
        yield from range(self.length)


class Stateful(Source):
    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Positioned(Source):
    def rows(self, position: list[int] | None) -> Any:
        for number in range(position[0] if position else 0, self.length):
            yield number, (number + 1,)


asked = st.lists(st.tuples(st.sampled_from(["row", "position", "commit"]), st.integers(0, 60)))


@settings(max_examples=40)
@given(
    kind=st.sampled_from([Counted, Stateful, Positioned]),
    length=st.integers(1, 40),
    batch_rows=st.integers(1, 9),
    asked=asked,
)
def test_a_row_is_the_same_however_it_is_come_by(kind, length, batch_rows, asked) -> None:
    """Also in another process that only knows the position."""
    rows, committed = StreamRows(kind(length), batch_rows=batch_rows), 0
    for what, number in asked:
        step = committed + number // 8
        if what == "row":
            row = committed * batch_rows + number
            assert rows[row] == row % length
        elif what == "position":
            elsewhere = StreamRows(kind(length), batch_rows=batch_rows)
            elsewhere.go_to(step * batch_rows, rows.position_at(step * batch_rows))
            row = step * batch_rows + number
            assert elsewhere[row] == row % length
        else:
            position = rows.position_at(step * batch_rows)
            committed = step
            rows.committed(committed * batch_rows)
            assert rows.position_at(committed * batch_rows) == position


@given(
    batch_rows=st.integers(1, 40),
    world_size=st.integers(1, 9),
    step=st.integers(0, 3 * EPOCH_STEPS),
)
def test_every_world_takes_the_next_rows(batch_rows, world_size, step) -> None:
    job = {"name": "p", "task": "digits", "steps": 4000, "global_batch_size": batch_rows}
    plan = JobPlan(spec=from_mapping({"job": job}, source="test"), order=InSequence(batch_rows))
    shares = [plan.share(step, rank=rank, world_size=world_size) for rank in range(world_size)]
    rows = [row for share in shares for request in share.requests for row in request.rows]
    assert rows == list(range(step * batch_rows, (step + 1) * batch_rows))
