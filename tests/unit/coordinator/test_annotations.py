"""Tags and notes: what may be one."""

from __future__ import annotations

import pytest

from dtd.coordinator.store.tables import (
    tagged,
)
from dtd.errors import RequestRefused


def test_tags_are_added_and_removed() -> None:
    assert tagged(("b",), add=("c", "a", "a"), remove=()) == ("a", "b", "c")
    assert tagged(("a", "b"), add=("a",), remove=("b",)) == ("a",)
    assert tagged(("a",), add=("a",), remove=("a",)) == ("a",)


def test_an_unknown_tag_is_named_with_the_nearest() -> None:
    with pytest.raises(
        RequestRefused, match=r'no tag "basline"; did you mean "baseline"\?'
    ) as said:
        tagged(("baseline", "x"), add=(), remove=("basline",))
    assert said.value.remedy == "its tags: baseline, x"
    with pytest.raises(RequestRefused) as said:
        tagged((), add=(), remove=("a",))
    assert said.value.remedy == "its tags: none"
