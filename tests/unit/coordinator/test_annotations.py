"""Tags and notes: what may be one."""

from __future__ import annotations

import pytest

from dtd.coordinator.store.tables import (
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
