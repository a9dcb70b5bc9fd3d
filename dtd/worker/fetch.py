"""Take over the live state of another worker, at the start of a generation.

Runs on the training thread over a connection of its own to the source's data port: manifest first,
then every blob in ranges, received into the memory that the training run names.
"""

from __future__ import annotations

from typing import Final, Protocol

from dtd.address import Address
from dtd.errors import DtdError, ErrorCode, ProtocolError, RingBroken
from dtd.net.blocking_link import BlockingLink
from dtd.wire import messages as m

CONNECT_TIMEOUT_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 60.0
RANGE_BYTES: Final = 1024 * 1024
RANGES_ASKED_AHEAD: Final = 4


class StateImporter(Protocol):
    """What receives a state: the training run."""

    def import_state(self, manifest: bytes) -> list[memoryview]:
        """Name the memory of every blob of this manifest."""
        ...

    def finish_import(self) -> None:
        """All bytes are there: make the state the live one."""
        ...


def fetch_state(run: StateImporter, source: m.Member, resource: str, *, by: str) -> None:
    """Fetch `resource` from `source` into the run.

    Raises:
        RingBroken: the source is gone or does not offer it any more; what we held is unchanged.
    """
    try:
        link = BlockingLink(
            Address(source.host, source.port),
            role=m.Role.FETCH,
            name=by,
            timeout_s=CONNECT_TIMEOUT_S,
        )
        try:
            _fetch(run, link, resource)
        finally:
            link.close()
    except (OSError, DtdError) as error:
        raise RingBroken(f"state from {source.name} could not be had: {error}") from error


def _fetch(run: StateImporter, link: BlockingLink, resource: str) -> None:
    link.send(m.FetchOpen(resource=resource))
    more, manifest = True, b""
    while more:
        info, payload = link.receive(timeout_s=ANSWER_TIMEOUT_S)
        if not isinstance(info, m.FetchInfo):
            raise _unexpected(info)
        more, manifest = info.more, manifest + bytes(payload)
    views = run.import_state(manifest)
    ranges = [
        (blob, offset, min(RANGE_BYTES, len(view) - offset))
        for blob, view in enumerate(views)
        for offset in range(0, len(view), RANGE_BYTES)
    ]
    for index in range(len(ranges) + RANGES_ASKED_AHEAD):
        if index < len(ranges):
            blob, offset, length = ranges[index]
            link.send(m.FetchRange(blob=blob, offset=offset, length=length))
        if index >= RANGES_ASKED_AHEAD:
            blob, offset, length = ranges[index - RANGES_ASKED_AHEAD]
            data, payload = link.receive(timeout_s=ANSWER_TIMEOUT_S)
            if data != m.FetchData(blob=blob, offset=offset) or len(payload) != length:
                raise _unexpected(data)
            views[blob][offset : offset + length] = payload
    run.finish_import()


def _unexpected(message: m.Message) -> ProtocolError:
    name = m.message_name(type(message))
    return ProtocolError(ErrorCode.WRONG_STATE, f"{name} does not answer what was asked")
