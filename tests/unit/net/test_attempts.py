"""Attempts at several addresses: their order and times on a virtual clock, and those in threads."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from functools import partial
from typing import Any

import pytest

from dtd.address import Address
from dtd.errors import ProtocolError
from dtd.net.addresses.attempts import ANSWER_S, CONNECT_S, Attempts
from dtd.net.addresses.routes import Routes, addresses
from dtd.net.clients.blocking_link import BlockingLink, first_link
from dtd.wire import messages as m
from dtd.wire.session import DataCredential

PATIENCE_S = 60.0


def member(name: str = "w", *others: str, host: str = "10.0.0.1") -> m.Member:
    return m.Member(name=name, incarnation=1, host=host, port=7, holds=True, others=others)


# --- when -----------------------------------------------------------------------------------------


def test_each_address_has_a_head_start_before_the_next() -> None:
    attempts = Attempts(3)
    assert attempts.start(10.0) == 0
    assert attempts.start(10.0) is None
    assert attempts.next_s() == 10.0 + CONNECT_S
    assert [attempts.start(10.0 + n * CONNECT_S) for n in (1, 2, 3)] == [1, 2, None]
    assert math.isinf(attempts.next_s())
    assert not attempts.over


def test_the_next_begins_at_once_when_one_has_failed() -> None:
    attempts = Attempts(3)
    attempts.start(10.0)
    attempts.failed(0)
    assert attempts.start(10.0) == 1
    assert attempts.start(10.0) is None


def test_one_that_failed_late_leaves_no_head_start_to_those_before() -> None:
    attempts = Attempts(3)
    attempts.start(10.0)
    attempts.start(10.0 + CONNECT_S)
    attempts.failed(1)
    assert attempts.start(10.0 + CONNECT_S) == 2


def test_an_address_that_is_connected_has_longer_to_answer() -> None:
    attempts = Attempts(2)
    attempts.start(10.0)
    attempts.connected(0, 10.1)
    assert attempts.start(10.0 + CONNECT_S) is None
    assert attempts.next_s() == 10.1 + ANSWER_S
    assert attempts.start(10.1 + ANSWER_S) == 1


def test_an_attempt_that_has_failed_does_not_come_back() -> None:
    attempts = Attempts(1)
    attempts.start(10.0)
    attempts.failed(0)
    attempts.connected(0, 10.0)
    assert attempts.over


# --- where ----------------------------------------------------------------------------------------


def test_the_address_that_answered_is_tried_first_the_next_time() -> None:
    routes, one = Routes(), member("w", "10.1.0.1", "10.2.0.1")
    assert routes.addresses(one) == addresses(one)
    routes.answered(one, Address("10.2.0.1", 7))
    hosts = [address.host for address in routes.addresses(one)]
    assert hosts == ["10.2.0.1", "10.0.0.1", "10.1.0.1"]
    assert routes.addresses(member("other", "10.2.0.1"))[0].host == "10.0.0.1"


def test_an_address_that_is_no_longer_offered_is_not_tried() -> None:
    routes = Routes()
    routes.answered(member("w"), Address("10.9.0.1", 7))
    assert routes.addresses(member("w")) == (Address("10.0.0.1", 7),)


# --- in threads -----------------------------------------------------------------------------------


def open_at(server):
    return partial(
        BlockingLink,
        role=m.Role.FETCH,
        name="tool",
        timeout_s=PATIENCE_S,
        entry=DataCredential(secret=server.secret),
    )


def test_a_link_is_opened_where_the_peer_answers(server, free_address) -> None:
    link, address = first_link([free_address, server.address], open_at(server))
    with contextlib.closing(link):
        assert address == server.address


def test_the_failure_of_the_first_address_is_raised_if_none_answers(server, free_address) -> None:
    with pytest.raises(ConnectionRefusedError):
        first_link([free_address, free_address], open_at(server))


def test_a_host_that_answers_without_the_keys_is_passed_over(server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            with other.accept()[0] as caller:
                caller.sendall(b"SSH-2.0-OpenSSH_9.6\r\n" * 8)
                caller.recv(1024)

        stranger = threading.Thread(target=answer)
        stranger.start()
        to = [Address(*other.getsockname()), server.address]
        link, address = first_link(to, open_at(server))
        with contextlib.closing(link):
            assert address == server.address
        stranger.join(PATIENCE_S)


def test_a_link_that_opens_too_late_is_closed(server) -> None:
    opened, goes_on, made = threading.Event(), threading.Event(), []
    plain = open_at(server)
    slow, fast = Address("10.0.0.1", 1), server.address

    def open_one(address: Address, **connected: Any) -> BlockingLink:
        if address != slow:
            return plain(address, **connected)
        goes_on.wait(PATIENCE_S)
        made.append(plain(fast, **connected))
        made[0].close = opened.set  # type: ignore[method-assign]
        return made[0]

    link, address = first_link([slow, fast], open_one)
    goes_on.set()
    assert address == fast
    assert opened.wait(PATIENCE_S)
    link.close()


def test_the_error_of_a_single_address_is_its_own(server) -> None:
    def refuse(address: Address) -> BlockingLink:
        raise ProtocolError(5, "no")  # type: ignore[arg-type]

    with pytest.raises(ProtocolError, match="no"):
        first_link([server.address], refuse)
