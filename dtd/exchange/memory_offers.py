"""Memory offered to the next rank and mapped from the previous one (protocol.md, "Shared memory").

Between two processes of one host, a bucket need not pass through the sockets.  The owner offers its
memory once (SHM_OFFER), the other side requests it (SHM_REQUEST), receives the open file
(`dtd.net.descriptors`) and confirms (SHM_MAPPED).  From the next step on, chunks have no payload
and are read in place.  Nothing else changes: the same chunks in the same order on the same
connection.  If the file does not arrive, because one address belongs to two hosts or containers or
the two processes belong to different users, everything is sent, and the log says why.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import structlog

from dtd.errors import ErrorCode, ProtocolError
from dtd.exchange.api import BucketMemory, BufferLocation, Shareable
from dtd.host.shared_memory import MappedMemory, map_memory
from dtd.net.descriptors import FdMailbox, in_thread, post
from dtd.wire.messages import MAX_LENT, ShmMapped, ShmOffer, ShmRegion, ShmReleased, ShmRequest

log = structlog.get_logger()

NOTHING_SHARED: tuple[int, frozenset[int]] = (0, frozenset())


class SharingLinks(Protocol):
    """The part of a ring's endpoint that shared memory needs."""

    def is_next_on_this_host(self) -> bool:
        """Whether the next rank is on this host, judging by addresses."""
        ...

    def tell_next(self, message: ShmOffer) -> None:
        """Send an offer to the next rank."""
        ...

    def tell_previous(self, message: ShmRequest | ShmMapped | ShmReleased) -> None:
        """Send an answer to the previous rank."""
        ...

    def unreadable(self, error: ProtocolError) -> None:
        """The previous rank's memory cannot be read.

        The machine has already counted the chunk, so the ring must end before the next event.
        """
        ...


class SharedMemory:
    """The shared memory of one ring's endpoint, in both directions.  Event loop only.

    Open files pass through `fd_dir`, a directory private to this user; if it is None, nothing is
    mapped.
    """

    def __init__(self, generation: int, *, links: SharingLinks, fd_dir: Path | None) -> None:
        self.links = links
        self._fd_dir = fd_dir
        self._generation = generation
        self._homes: list[BufferLocation | None] = []
        self._own: Shareable | None = None
        self._offers = 0
        self._offered: frozenset[int] = frozenset()
        self._is_mapped = False
        self._is_requested = False
        self._offer_here: ShmOffer | None = None
        self._mailbox: FdMailbox[MappedMemory] | None = None
        self._theirs: MappedMemory | None = None

    # --- offering --------------------------------------------------------------------------

    def offer(self, buckets: Sequence[BucketMemory]) -> tuple[int, frozenset[int]]:
        """Offer the memory of a step's buckets if it is not the one offered before.

        Returns:
            The number under which the next rank can read it now, and the indices of the buckets.
        """
        homes = [bucket.home for bucket in buckets]
        if homes != self._homes:
            memory = next((home.memory for home in homes if home is not None), None)
            if memory is None or len(homes) > MAX_LENT or not self.links.is_next_on_this_host():
                return NOTHING_SHARED
            self._send_offer(memory, homes)
        if self._own is None or not self._is_mapped:
            return NOTHING_SHARED
        return self._own.version, self._offered

    def _send_offer(self, memory: Shareable, homes: list[BufferLocation | None]) -> None:
        offsets = [
            home.offset_bytes if home is not None and home.memory is memory else 0 for home in homes
        ]
        self._homes, self._own = homes, memory
        self._offers += 1
        self._is_mapped = self._is_requested = False
        self._offered = frozenset(index for index, offset in enumerate(offsets) if offset)
        self.links.tell_next(
            ShmOffer(
                generation=self._generation,
                number=self._offers,
                nonce=memory.nonce,
                size_bytes=memory.size_bytes,
                lots=tuple(ShmRegion(offset=offset) for offset in offsets),
            )
        )

    def received(self, message: ShmOffer | ShmRequest | ShmMapped) -> None:
        """Handle a neighbour's message about shared memory."""
        if message.generation != self._generation:
            raise ProtocolError(
                ErrorCode.STALE_GENERATION, f"shared memory of generation {message.generation}"
            )
        if isinstance(message, ShmOffer):
            self._on_offer(message)
            return
        if not 0 < message.number <= self._offers:
            raise ProtocolError(
                ErrorCode.WRONG_STATE, f"offer {message.number} of {self._offers} does not exist"
            )
        if message.number != self._offers:
            return  # another offer has followed
        if isinstance(message, ShmRequest):
            self._on_request(message)
        else:
            self._is_mapped = True

    def _on_request(self, message: ShmRequest) -> None:
        if self._is_requested:
            raise ProtocolError(ErrorCode.WRONG_STATE, f"offer {message.number} requested twice")
        self._is_requested = True
        assert self._own is not None, "an offer of nothing"
        try:
            descriptor = os.dup(self._own.descriptor)
        except OSError:  # it is closed; another offer will follow
            return
        in_thread(_hand_over, message.socket, descriptor)

    # --- mapping ---------------------------------------------------------------------------

    def _on_offer(self, message: ShmOffer) -> None:
        """The previous rank offers its memory: request it."""
        self.close()
        self._offer_here = message
        if self._fd_dir is None:
            return

        def look(descriptor: int) -> MappedMemory | None:
            return map_memory(descriptor, nonce=message.nonce, size_bytes=message.size_bytes)

        try:
            self._mailbox = FdMailbox(self._fd_dir, look, self._on_memory)
        except OSError as error:  # the host does not permit it: everything is sent
            log.info("memory_not_mapped", reason=str(error))
            return
        path, number = self._mailbox.path, message.number
        self.links.tell_previous(
            ShmRequest(generation=self._generation, number=number, socket=path)
        )

    def _on_memory(self, memory: MappedMemory) -> None:
        assert self._offer_here is not None, "a mailbox without a SHM_OFFER"
        self._theirs, self._mailbox = memory, None
        number = self._offer_here.number
        self.links.tell_previous(ShmMapped(generation=self._generation, number=number))

    def read(self, bucket: int, start_byte: int, stop_byte: int) -> memoryview:
        """Return bytes of the previous rank's bucket; call `check_unchanged` after reading them.

        Raises:
            ProtocolError: they were not offered, or are outside of the offered memory.
        """
        offer = self._offer_here
        offset = offer.lots[bucket].offset if offer is not None and bucket < len(offer.lots) else 0
        if offer is None or self._theirs is None or not offset:
            raise ProtocolError(ErrorCode.UNEXPECTED_CHUNK, f"bucket {bucket} is not shared")
        if offset + stop_byte > offer.size_bytes:
            raise ProtocolError(
                ErrorCode.BAD_PAYLOAD, f"bucket {bucket} ends beyond the memory that is shared"
            )
        return self._theirs.view(offset + start_byte, stop_byte - start_byte)

    def check_unchanged(self, version: int) -> None:
        """Check that the memory still had this number while it was read.

        Raises:
            ProtocolError: the previous rank has recalled it, since it has left the step.
        """
        if self._theirs is None or self._theirs.version != version:
            raise ProtocolError(
                ErrorCode.RECALLED, f"the previous rank has recalled memory {version}"
            )

    def close(self) -> None:
        """Unmap the previous rank's memory; idempotent."""
        if self._mailbox is not None:
            self._mailbox.close()
            self._mailbox = None
        memory, self._offer_here, self._theirs = self._theirs, None, None
        if memory is not None:
            in_thread(memory.close)


def _hand_over(path: str, descriptor: int) -> None:
    """Pass the file to a neighbour; runs in a thread, since access to the path may be slow."""
    try:
        post(path, descriptor)
    except (OSError, ValueError) as error:  # ValueError: no path has such characters
        log.info("memory_not_offered", reason=str(error))
    finally:
        os.close(descriptor)
