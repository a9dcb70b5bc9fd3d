"""Ask the holder of a resource for it and hear what it consists of: how every fetch begins.

What is fetched of it, and in which order, is the caller's business; see protocol.md, "FETCH_OPEN".
"""

from __future__ import annotations

import math

from dtd.errors import ErrorCode, ProtocolError
from dtd.net.blocking_link import BlockingLink
from dtd.wire import messages as m


def open_resource(
    link: BlockingLink, resource: str, *, timeout_s: float = math.inf, silence_s: float = math.inf
) -> tuple[list[m.BlobInfo], bytes]:
    """Names and sizes of all blobs, and the manifest.

    A holder that prepares its state says so meanwhile with empty lists.

    Args:
        link: to the holder.
        resource: "state/GENERATION" or "checkpoint/DIRECTORY/NAME".
        timeout_s: bound on each of the holder's messages.
        silence_s: bound on the time without a single byte.

    Raises:
        TimeoutError, ConnectionError, RequestRefused, ProtocolError: as `BlockingLink.receive`;
            also when something else than FETCH_INFO answers.
    """
    link.send(m.FetchOpen(resource=resource))
    blobs: list[m.BlobInfo] = []
    more, manifest = True, b""
    while more:
        info, payload = link.receive(timeout_s=timeout_s, silence_s=silence_s)
        if not isinstance(info, m.FetchInfo):
            raise unexpected(info)
        blobs += info.blobs
        more, manifest = info.more, manifest + bytes(payload)
    return blobs, manifest


def unexpected(message: m.Message) -> ProtocolError:
    """The holder answered something that was not asked for."""
    name = m.message_name(type(message))
    return ProtocolError(ErrorCode.WRONG_STATE, f"{name} does not answer what was asked")
