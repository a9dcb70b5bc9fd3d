"""Every message of the protocol, its number and its fields (protocol.md, "Messages").

Messages are frozen dataclasses, in one module for each kind of conversation; everything else that
is fixed about them is in `catalogue`.  `encode_header` and `decode_message` translate to and from a
frame's msgpack map.  A module is loaded when one of its names is first used here, or when one of
its messages arrives: `dtdctl` does not load messages that only workers exchange.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dtd.wire.messages.catalogue import BESIDE, BY_NAME, MAX_WORD_BYTES, Role
from dtd.wire.messages.registry import (
    TYPE_KEY,
    Message,
    decode_message,
    encode_header,
    from_acceptor,
    from_opener,
    kind_of,
    message_bytes,
    message_name,
    message_types,
)

__all__ = [
    "MAX_WORD_BYTES",
    "TYPE_KEY",
    "Message",
    "Role",
    "decode_message",
    "encode_header",
    "from_acceptor",
    "from_opener",
    "kind_of",
    "message_bytes",
    "message_name",
    "message_types",
]

if TYPE_CHECKING:  # type checkers see all modules as loaded
    from dtd.wire.messages.connection import *  # noqa: F403
    from dtd.wire.messages.control import *  # noqa: F403
    from dtd.wire.messages.ctl import *  # noqa: F403
    from dtd.wire.messages.data import *  # noqa: F403
    from dtd.wire.messages.models import *  # noqa: F403
    from dtd.wire.messages.requests import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """Load the module that defines this name; later look-ups find it directly."""
        module = BY_NAME[name].module if name in BY_NAME else BESIDE.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        globals()[name] = found
        return found
