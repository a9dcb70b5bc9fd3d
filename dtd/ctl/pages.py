"""Read a list that the coordinator hands out piece by piece, from cursor to cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dtd.wire import messages as m

Answer = dict[str, Any]


def pages(
    request: Callable[[m.Message], Answer], make: Callable[[int], m.Message], key: str
) -> Iterator[Answer]:
    """Answers in order, until one brings nothing new under `key`."""
    after = 0
    while (answer := request(make(after)))[key]:
        yield answer
        after = answer["next"]
