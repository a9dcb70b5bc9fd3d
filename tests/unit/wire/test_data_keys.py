"""Secrets of the data plane: equal where they must be, different everywhere else, and constant."""

from __future__ import annotations

from dtd.wire import data_keys as keys

ROOT = bytes(range(32))


def test_derivation_is_what_protocol_md_says() -> None:
    """Constants: a release that derives otherwise could not talk to its peers."""
    secret = keys.generation_secret(ROOT, "digits-1", 3, 77)
    assert secret.hex() == "ecdc2b99f4cd4d320e4a4b6856072d5f43808c9d7500005773e7c58bff65e3bb"
    worker = keys.worker_secret(ROOT, "host7", 42)
    assert worker.hex() == "83f573d593316d489dc31473b2fe2f0f99cc31702f3be95d215f8dd0985e3e79"
    ticket = keys.ticket_key(worker, "checkpoint/digits-1/g1-s10", 1_800_000_000)
    assert ticket.hex() == "6fb7914b95a0bac342b5ef86b81cade2d88a1cabcc13ff768a274e77069c8287"
    session = keys.session_key(
        secret, hello=b"h", hello_nonce=b"a" * 16, welcome_nonce=b"b" * 16, sender=keys.OPENER
    )
    assert session.hex() == "0f030837ce2a0a6267f4ae2215ebd089"


def test_every_input_counts() -> None:
    secrets = {
        keys.generation_secret(ROOT, "j", 1, 1),
        keys.generation_secret(ROOT, "j", 1, 2),
        keys.generation_secret(ROOT, "j", 2, 1),
        keys.generation_secret(ROOT, "k", 1, 1),
        keys.generation_secret(bytes(32), "j", 1, 1),
        keys.worker_secret(ROOT, "j", 1),
        keys.worker_secret(ROOT, "j", 2),
        keys.ticket_key(ROOT, "j", 1),
        keys.ticket_key(ROOT, "j", 2),
    }
    assert len(secrets) == 9


def test_the_ends_of_a_connection_are_named_by_network_and_both_addresses() -> None:
    network = bytes(keys.KEY_BYTES)
    one = keys.ends_of(network, opener="127.0.0.1:1", acceptor="127.0.0.1:2")
    assert one.hex() == "12d02ae8b073fc216cc699b1fd0eced9"  # in protocol.md's words
    others = {
        keys.ends_of(network, opener="127.0.0.1:2", acceptor="127.0.0.1:1"),
        keys.ends_of(network, opener="127.0.0.1:12", acceptor="127.0.0.1:2"),
        keys.ends_of(b"n" * keys.KEY_BYTES, opener="127.0.0.1:1", acceptor="127.0.0.1:2"),
    }
    assert one not in others
