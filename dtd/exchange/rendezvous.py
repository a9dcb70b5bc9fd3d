"""Rendezvous of a process group's members, through words on the ring.

torch.distributed requires a key-value store that all ranks write to and read from.  A TCP store
needs a configured address and a server, which may fail.  This store needs neither: the entries of
all ranks are exchanged on the ring (`run`).  So the members are those of the roster, a rank that
dies ends this exchange like any other, and no entry is ever visible in another generation.

The group is created in a separate thread, started by `Rendezvous.run`, because its creation blocks
in C++ and cannot be interrupted.  If the ring breaks in the meantime, the thread is abandoned: it
ends at the group's own timeout at the latest, and a group that it has created is dropped.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from torch._C._distributed_c10d import Store

from dtd.errors import ErrorCode, ProcessGroupFailed, ProtocolError

Made = TypeVar("Made")

MAX_ROUNDS: Final = 64
"""Gloo needs two exchanges; a rendezvous that takes more waits for a key that no rank writes."""

_HEAD: Final = struct.Struct("<BI")
_ENTRY: Final = struct.Struct("<II")
_UNDER_WAY, _FINISHED, _FAILED = range(3)


class RingStore(Store):
    """The entries of all ranks; `Rendezvous` adds those of the others.

    Called from the thread that creates the group, and later from the group's own threads.
    """

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()
        self.closed = ""
        self.blocked = False
        self._values: dict[str, bytes] = {}
        self._unsent: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        """Write an entry; other ranks can read it after the next exchange."""
        with self.changed:
            written = value.encode() if isinstance(value, str) else bytes(value)
            self._values[key] = self._unsent[key] = written
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        """Block until a rank has written this key, and return its value."""
        self.wait([key])
        with self.changed:
            return self._values[key]

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        """Block until all of these keys have been written, or the ring has ended."""
        del timeout
        with self.changed:
            while not all(key in self._values for key in keys):
                if self.closed:
                    raise RuntimeError(self.closed)
                self.blocked = True
                self.changed.notify_all()
                self.changed.wait()

    def check(self, keys: list[str]) -> bool:
        """Whether all of these keys are known to have been written."""
        with self.changed:
            return all(key in self._values for key in keys)

    def take_unsent(self) -> dict[str, bytes]:
        """Return the entries written since the last exchange; called with the lock held."""
        unsent, self._unsent = self._unsent, {}
        return unsent

    def has_unsent(self) -> bool:
        """Whether there are entries to send; called with the lock held."""
        return bool(self._unsent)

    def learn(self, values: dict[str, bytes]) -> None:
        """Add entries of other ranks."""
        with self.changed:
            self._values.update(values)
            self.blocked = False
            self.changed.notify_all()

    def close(self, why: str) -> None:
        """End all waits for keys."""
        with self.changed:
            self.closed = why
            self.changed.notify_all()


class Rendezvous(Generic[Made]):
    """Creates one rank's part of one group.

    Args:
        make: creates it with the store, in a separate thread; blocks until all ranks are connected.
        drop: called with the created part if the rendezvous was abandoned.
    """

    def __init__(self, make: Callable[[Store], Made], drop: Callable[[Made], None]) -> None:
        self._make = make
        self._drop = drop
        self._store = RingStore()
        self._made: list[Made] = []
        self._failure = ""
        self._abandoned = False

    def run(
        self,
        gather: Callable[[bytes], list[bytes]],
        check: Callable[[], None],
        wake: Callable[[Callable[[], None]], None],
    ) -> Made:
        """Create this rank's part; returns when all ranks have created theirs.

        Args:
            gather: exchanges payloads with all ranks.
            check: raises when the ring is broken.
            wake: `wake(callback)` arranges for the callback to be called when the ring breaks.

        Raises:
            RingBroken: raised by `check` or `gather`.
            ProcessGroupFailed: a rank could not create its part.
        """
        wake(self._look_again)
        threading.Thread(target=self._run_make, name="process-group", daemon=True).start()
        try:
            for _ in range(MAX_ROUNDS):
                if self._round(gather, check):
                    self._store.close("the group is made, and nothing is exchanged any more")
                    return self._made[0]
            raise ProcessGroupFailed("a rank waits for what no rank writes")
        except BaseException:
            self._abandon()
            raise

    def _round(self, gather: Callable[[bytes], list[bytes]], check: Callable[[], None]) -> bool:
        """Make one exchange once this rank has news; returns whether all ranks have finished."""
        store = self._store
        with store.changed:
            while not (store.has_unsent() or store.blocked or self._made or self._failure):
                check()
                store.changed.wait()
            check()
            state = _FAILED if self._failure else _FINISHED if self._made else _UNDER_WAY
            said = _encode(state, store.take_unsent(), self._failure)
        heard = [_decode(payload) for payload in gather(said)]
        for rank, (state, _, why) in enumerate(heard):
            if state == _FAILED:
                raise ProcessGroupFailed(f"rank {rank}: {why}")
        store.learn({key: value for _, values, _ in heard for key, value in values.items()})
        return all(state == _FINISHED for state, _, _ in heard)

    def _run_make(self) -> None:
        store = self._store
        try:
            made = self._make(store)
        except Exception as error:  # noqa: BLE001 - C++ may raise anything; all ranks are told
            with store.changed:
                self._failure = f"{type(error).__name__}: {error}"[:1000]
                store.changed.notify_all()
            return
        with store.changed:
            abandoned = self._abandoned
            if not abandoned:
                self._made.append(made)
            store.changed.notify_all()
        if abandoned:
            self._drop(made)

    def _abandon(self) -> None:
        with self._store.changed:
            self._abandoned = True
            made, self._made = self._made, []
        self._store.close("the ring has ended")
        for one in made:
            self._drop(one)

    def _look_again(self) -> None:
        with self._store.changed:
            self._store.changed.notify_all()


def _encode(state: int, values: dict[str, bytes], why: str) -> bytes:
    """Encode the state, then the reason of a failure, then the entries."""
    reason = why.encode()
    parts = [_HEAD.pack(state, len(reason)), reason]
    for key, value in values.items():
        name = key.encode()
        parts += [_ENTRY.pack(len(name), len(value)), name, value]
    return b"".join(parts)


def _decode(payload: bytes) -> tuple[int, dict[str, bytes], str]:
    """Decode the bytes of `_encode`.

    Raises:
        ProtocolError: the payload is malformed.
    """
    try:
        state, reason_bytes = _HEAD.unpack_from(payload)
        at = _HEAD.size + reason_bytes
        if at > len(payload):
            raise ValueError("it ends too early")
        why = payload[_HEAD.size : at].decode()
        values = {}
        while at < len(payload):
            name_bytes, value_bytes = _ENTRY.unpack_from(payload, at)
            at += _ENTRY.size
            if at + name_bytes + value_bytes > len(payload):
                raise ValueError("it ends too early")
            name = payload[at : at + name_bytes].decode()
            values[name] = payload[at + name_bytes : at + name_bytes + value_bytes]
            at += name_bytes + value_bytes
    except (struct.error, ValueError) as error:
        raise ProtocolError(
            ErrorCode.BAD_PAYLOAD, f"what a rank says of its process group is damaged: {error}"
        ) from error
    return state, values, why
