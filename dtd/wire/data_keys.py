"""Derivation of all secrets of the data plane from one root (protocol.md, "Security").

The coordinator holds the root, `data_key`.  It gives each generation's secret to the members of its
roster, and gives each worker the secret with which that worker verifies tickets; a ticket lets a
client that belongs to no roster fetch one resource until the ticket expires, by the monotonic clock
of that worker, which the coordinator knows from REGISTER.  Derivation is keyed
BLAKE2b with a separate name for each use, over length-prefixed fields, so different uses or inputs
cannot collide.  Pure.
"""

from __future__ import annotations

import hashlib
from typing import Final

KEY_BYTES: Final = 32
SESSION_KEY_BYTES: Final = 16
ENDS_BYTES: Final = 16

OPENER: Final = "opener"
ACCEPTOR: Final = "acceptor"

_INTEGER_BYTES: Final = 8
_LENGTH_BYTES: Final = 4


def generation_secret(data_key: bytes, job: str, generation: int, roster_id: int) -> bytes:
    """The secret that only the members of one roster and the coordinator know: 32 bytes."""
    return _derive(data_key, "generation", job, generation, roster_id)


def worker_secret(data_key: bytes, name: str, incarnation: int) -> bytes:
    """The secret that only one process of one worker and the coordinator know: 32 bytes."""
    return _derive(data_key, "worker", name, incarnation)


def ticket_key(worker_secret: bytes, resource: str, expires_s: int) -> bytes:
    """The key that lets its holder fetch one resource of that worker until it expires: 32 bytes."""
    return _derive(worker_secret, "ticket", resource, expires_s)


def session_key(
    secret: bytes, *, hello: bytes, hello_nonce: bytes, welcome_nonce: bytes, sender: str
) -> bytes:
    """Key of the tags in one direction of one data connection: 16 bytes.

    Args:
        secret: the generation's secret, or a ticket's key.
        hello: the header of the HELLO frame as it was on the wire.
        hello_nonce: the opener's, 16 bytes.
        welcome_nonce: the acceptor's, 16 bytes.
        sender: OPENER or ACCEPTOR.
    """
    derived = _derive(secret, f"session {sender}", hello, hello_nonce, welcome_nonce)
    return derived[:SESSION_KEY_BYTES]


def ends_of(network: bytes, *, opener: str, acceptor: str) -> bytes:
    """Return 16 bytes that both sides of a loopback connection, and of no other, compute alike.

    A proxy that ends on loopback on both sides makes two connections.

    Args:
        network: identifies the running kernel and its network namespace, 32 bytes.
        opener: the opener's "HOST:PORT", as this side's kernel has it.
        acceptor: the acceptor's, likewise.
    """
    return _derive(network, "ends", opener, acceptor)[:ENDS_BYTES]


def _derive(key: bytes, use: str, *fields: bytes | str | int) -> bytes:
    assert len(key) == KEY_BYTES
    hashed = hashlib.blake2b(key=key, digest_size=KEY_BYTES)
    for field in (use, *fields):
        encoded = _encoded(field)
        hashed.update(len(encoded).to_bytes(_LENGTH_BYTES, "big"))
        hashed.update(encoded)
    return hashed.digest()


def _encoded(field: bytes | str | int) -> bytes:
    if isinstance(field, int):
        return field.to_bytes(_INTEGER_BYTES, "big")
    return field.encode() if isinstance(field, str) else field
