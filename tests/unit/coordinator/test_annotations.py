"""Tags and notes: what may be one."""

from __future__ import annotations

import pytest

from dtd.coordinator.store.tables import (
    MAX_NOTE_CHARACTERS,
    MAX_TAGS,
    checked_note,
    checked_tag,
    tagged,
)
from dtd.errors import RequestRefused


def test_an_unknown_tag_is_named_with_the_nearest() -> None:
    with pytest.raises(
        RequestRefused, match=r'no tag "basline"; did you mean "baseline"\?'
    ) as said:
        tagged(("baseline", "x"), add=(), remove=("basline",))
    assert said.value.remedy == "its tags: baseline, x"
    with pytest.raises(RequestRefused) as said:
        tagged((), add=(), remove=("a",))
    assert said.value.remedy == "its tags: none"


@pytest.mark.parametrize("tag", ["", "-a", "a b", "a\n", "é", "a" * 65])
def test_what_is_no_tag(tag: str) -> None:
    with pytest.raises(RequestRefused, match="is not a tag"):
        checked_tag(tag)


def test_bounds() -> None:
    assert checked_tag("lr:0.1/x+y_z-1") == "lr:0.1/x+y_z-1"
    with pytest.raises(RequestRefused, match=f"{MAX_TAGS} tags, not {MAX_TAGS + 1}"):
        tagged((), add=[f"t{number}" for number in range(MAX_TAGS + 1)], remove=())
    assert checked_note("x" * MAX_NOTE_CHARACTERS)
    with pytest.raises(RequestRefused, match="4001"):
        checked_note("x" * (MAX_NOTE_CHARACTERS + 1))
