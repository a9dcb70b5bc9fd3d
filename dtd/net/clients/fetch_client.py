"""A blocking client of a worker's data port: open a resource, fetch the files of a checkpoint.

Every fetch begins with `open_resource` (protocol.md, "FETCH_OPEN"); the caller decides what is
fetched then, and in which order.  `FetchClient` is used by `dtdctl fetch`.  Bytes go to a `.part`
file beside the target, which a later fetch continues; a file gets its final name only if its hash
matches the manifest.  The meaning of the files is not known here.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import xxhash

from dtd.address import Address
from dtd.errors import CheckpointError, ErrorCode, HolderUnreachable, ProtocolError, RequestRefused
from dtd.host.durable import synced
from dtd.net.clients.blocking_link import BlockingLink, Connect, connect_tcp, first_link
from dtd.text.json_reader import read_json
from dtd.wire import messages as m
from dtd.wire.session import DataCredential

DEFAULT_TIMEOUT_S: Final = 10.0
RANGE_BYTES: Final = 1024 * 1024
RANGES_AHEAD: Final = 4
"""The holder reads and codes the next ones while it sends."""
CLIENT_NAME: Final = "dtdctl"

MAX_MANIFEST_BYTES: Final = 64 << 20
MAX_BLOBS: Final = 1 << 20


def addresses_in(answer: Mapping[str, Any]) -> tuple[Address, ...]:
    """Return the addresses of a data port in an answer of the coordinator, best first."""
    hosts = (answer["data_host"], *answer["data_others"])
    return tuple(Address(host, answer["data_port"]) for host in hosts)


# Called with the number of bytes received of the file, and its size.
OnBytes = Callable[[int, int], None]


def open_resource(
    link: BlockingLink, resource: str, *, timeout_s: float = math.inf, silence_s: float = math.inf
) -> tuple[list[m.BlobInfo], bytes]:
    """Names and sizes of all blobs, and the manifest, of a resource such as "state/GENERATION".

    A holder that is still preparing its state sends empty lists meanwhile.

    Raises:
        TimeoutError, ConnectionError, RequestRefused, ProtocolError: as `BlockingLink.receive`;
            also when the answer is not FETCH_INFO, or there is no end to it.
    """
    link.send(m.FetchOpen(resource=resource))
    blobs: list[m.BlobInfo] = []
    more, manifest = True, bytearray()
    while more:
        info, payload = link.receive(timeout_s=timeout_s, silence_s=silence_s)
        if not isinstance(info, m.FetchInfo):
            raise unexpected(info)
        blobs += info.blobs
        manifest += payload
        more = info.more
        if len(manifest) > MAX_MANIFEST_BYTES or len(blobs) > MAX_BLOBS:
            raise ProtocolError(
                ErrorCode.BAD_PAYLOAD,
                f"{resource} has over {MAX_MANIFEST_BYTES} bytes of manifest or {MAX_BLOBS} blobs",
            )
    return blobs, bytes(manifest)


def unexpected(message: m.Message) -> ProtocolError:
    """The error for an answer that was not requested."""
    name = m.message_name(type(message))
    return ProtocolError(ErrorCode.WRONG_STATE, f"{name} sent an unexpected answer")


class FetchClient:
    """One open resource of a worker; use it as a context manager.

    Attributes:
        manifest: the checkpoint's manifest, decoded.

    Raises:
        CheckpointError: the worker refuses.
        HolderUnreachable: the worker cannot be reached, or left.
    """

    def __init__(
        self,
        to: Sequence[Address],
        resource: str,
        ticket: DataCredential,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        connect: Connect = connect_tcp,
    ) -> None:
        self._where = f"{resource} at {to[0]}"
        self._timeout_s = timeout_s
        from dtd.planes import PLANES, PlaneCoder  # here: dtdctl does not wait for numpy

        self._coder = PlaneCoder()
        with self._failures_told():
            self._link, address = first_link(
                to,
                partial(
                    BlockingLink,
                    role=m.Role.FETCH,
                    name=CLIENT_NAME,
                    timeout_s=timeout_s,
                    entry=ticket,
                    connect=connect,
                    coding=PLANES,
                ),
            )
        self._where = f"{resource} at {address}"
        try:
            with self._failures_told():
                blobs, manifest = open_resource(self._link, resource, timeout_s=timeout_s)
        except BaseException:
            self.close()
            raise
        self._blobs = {blob.name: (index, blob.size_bytes) for index, blob in enumerate(blobs)}
        self.manifest = _decode_manifest(manifest, self._where)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self._link.close()

    def fetch(self, name: str, target: Path, *, on_bytes: OnBytes | None = None) -> None:
        """Fetch one file, continuing where an earlier attempt stopped.

        Raises:
            CheckpointError: the checkpoint lacks the file, or the received file does not verify.
        """
        digest = self.digest_of(name)
        if name not in self._blobs:
            raise CheckpointError(f"{self._where} does not offer {name}")
        part = target.with_name(f".{target.name}.{digest[:16]}.part")
        with synced(part.open("ab")) as file:
            self._append(name, file, on_bytes)
        if file_digest(part) != digest:
            part.unlink()
            raise CheckpointError(
                f"{name} of {self._where} does not match the hash in its manifest",
                remedy="fetch it again; if that fails too, the copy on that worker is damaged",
            )
        part.replace(target)

    def digest_of(self, name: str) -> str:
        """The hash that the manifest gives for a file, in hex.

        Raises:
            CheckpointError: it has none.
        """
        entry = self.manifest.get("files", {}).get(name, {})
        digest = entry.get("hash") if isinstance(entry, dict) else None
        if not isinstance(digest, str):
            raise CheckpointError(f"the manifest of {self._where} has no hash for {name}")
        return digest

    def _append(self, name: str, file: BinaryIO, on_bytes: OnBytes | None) -> None:
        index, size_bytes = self._blobs[name]
        if file.tell() > size_bytes:
            file.truncate(0)
        most_bytes = min(RANGE_BYTES, self._link.max_payload_bytes)
        missing = deque(
            m.FetchRange(blob=index, offset=offset, length=min(most_bytes, size_bytes - offset))
            for offset in range(file.seek(0, os.SEEK_END), size_bytes, most_bytes)
        )
        asked: deque[m.FetchRange] = deque()
        while missing or asked:
            while missing and len(asked) < RANGES_AHEAD:
                asked.append(missing.popleft())
                with self._failures_told():
                    self._link.send(asked[-1])
            part = asked.popleft()
            file.write(self._range(part, name))
            if on_bytes is not None:
                on_bytes(part.offset + part.length, size_bytes)

    def _range(self, part: m.FetchRange, name: str) -> memoryview:
        """The answer to the first open request."""
        with self._failures_told():
            answer, payload = self._link.receive(timeout_s=self._timeout_s)
            if isinstance(answer, m.FetchData) and answer.plain_bytes:
                plain = memoryview(bytearray(part.length))
                self._coder.decode(payload, plain, answer.item_bytes)
                payload = plain
        same = isinstance(answer, m.FetchData) and (answer.blob, answer.offset) == (
            part.blob,
            part.offset,
        )
        if not same or len(payload) != part.length:
            raise CheckpointError(f"{self._where} answered with another range of {name}")
        return payload

    @contextlib.contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ProtocolError, RequestRefused) as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError | ProtocolError | RequestRefused) -> CheckpointError:
        if isinstance(error, TimeoutError):
            reason = f"no answer within {self._timeout_s:g} s"
        elif isinstance(error, OSError):
            reason = error.strerror or str(error)
        else:
            reason = error.message
        remedy = "" if isinstance(error, OSError) else error.remedy
        kind = HolderUnreachable if isinstance(error, OSError) else CheckpointError
        return kind(
            f"{self._where} cannot be fetched: {reason}",
            remedy=remedy or "see which other workers hold it with: dtdctl checkpoints",
        )


def file_digest(path: Path) -> str:
    """The hash of a file as in manifests, in hex."""
    hasher = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(RANGE_BYTES):
            hasher.update(piece)
    return hasher.hexdigest()


def _decode_manifest(data: bytes, where: str) -> dict[str, Any]:
    try:
        manifest = read_json(data, max_bytes=MAX_MANIFEST_BYTES)
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict):
        raise CheckpointError(f"the manifest of {where} is not a JSON object")
    return manifest
