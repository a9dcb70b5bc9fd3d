"""Who a link belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dtd.errors import DtdError
from dtd.wire import messages as m
from dtd.wire.frames import Hold

if TYPE_CHECKING:
    from dtd.net.link import Link


class LinkHandler(Protocol):
    """Who a link belongs to.  A ProtocolError raised in any method closes the link with it."""

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """HELLO arrived (answer with `link.welcome(...)`, now or later), or WELCOME did.

        On a data connection the acceptor knows who calls when `link_received` brings PROVE.
        """
        ...

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Name the memory of a payload that is about to arrive."""
        ...

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """A message arrived whole."""
        ...

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """The link is gone; `error` says why unless it ended in good order."""
        ...
