"""Links to neighbours with several addresses: wrong hosts and dead ends are passed over.

All of 127.0.0.0/8 is this host, so several data ports can have one number.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

from dtd.address import Address
from dtd.exchange.endpoint import RingEndpoint
from dtd.net.addresses.routes import Routes
from tests.unit.exchange.generation import GENERATION, PATIENCE_S, Node, assigns

HOSTS = [f"127.0.0.{n}" for n in range(1, 5)]


def reserved() -> dict[str, socket.socket]:
    """Sockets bound to one port on all of the hosts, so that no other process listens there.

    None of them listens: whoever connects to one is refused.
    """
    while True:
        made = {host: socket.socket() for host in HOSTS}
        port = 0
        try:
            for host, one in made.items():
                one.bind((host, port))
                port = one.getsockname()[1]
        except OSError:
            for one in made.values():
                one.close()
            continue
        return made


class Pair:
    """Two ranks; the second one has several addresses, one of them with its data port."""

    def __init__(self) -> None:
        self.nodes = [Node(0), Node(1)]
        self.routes = Routes()
        self.reserved = reserved()
        self.port: int = self.reserved[HOSTS[0]].getsockname()[1]

    async def listen(self, node: Node, host: str) -> None:
        self.reserved.pop(host).close()
        await node.server.listen(Address(host, self.port))

    async def form(self, at: str, *others: str, listens: str, silence_s: float = PATIENCE_S):
        first, second = self.nodes
        own = await first.server.listen(Address("127.0.0.1", 0))
        await self.listen(second, listens)
        given = assigns([own, Address(at, self.port)])
        roster = (given[0].roster[0], replace(given[0].roster[1], others=others))
        for node, assign in zip(self.nodes, given, strict=True):
            node.endpoint = RingEndpoint(
                replace(assign, roster=roster),
                node.server,
                chunk_bytes=64,
                beat_interval_s=silence_s / 6,
                silence_s=silence_s,
                listener=node,
                routes=self.routes,
            )
            node.endpoint.connect()
        return self.nodes

    def answered(self) -> Address:
        """The address that the first rank tries first from now on."""
        return self.routes.addresses(self.nodes[0].endpoint.assign.roster[1])[0]

    def close(self) -> None:
        for node in self.nodes:
            node.endpoint.end("the test is over")
            node.server.close()
        for one in self.reserved.values():
            one.close()


async def up(*nodes: Node) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(node.up.wait() for node in nodes))


async def test_the_address_at_which_the_neighbour_listens_is_found() -> None:
    pair = Pair()
    nodes = await pair.form(*HOSTS[:3], listens=HOSTS[2])
    await up(*nodes)
    assert pair.answered() == Address(HOSTS[2], pair.port)
    assert not any(node.broken.done() for node in nodes)
    pair.close()


async def test_a_name_stands_for_all_its_addresses() -> None:
    pair = Pair()
    nodes = await pair.form("localhost", listens="127.0.0.1")
    await up(*nodes)
    pair.close()


async def test_another_member_at_one_of_the_addresses_is_not_taken() -> None:
    """As at the address of a bridge that every host has: there the caller itself answers."""
    pair, wrong = Pair(), Node(2)
    await pair.listen(wrong, HOSTS[0])
    nodes = await pair.form(*HOSTS[:2], listens=HOSTS[1])
    wrong.server.expect_ring(nodes[0].endpoint.assign, lambda _link, _hello: None)
    await up(*nodes)
    assert pair.answered() == Address(HOSTS[1], pair.port)
    wrong.server.close()
    pair.close()


async def test_a_worker_of_another_cluster_at_one_of_the_addresses_is_not_taken() -> None:
    pair, foreign = Pair(), Node(1)
    await pair.listen(foreign, HOSTS[0])
    nodes = await pair.form(*HOSTS[:2], listens=HOSTS[1])
    other = replace(nodes[0].endpoint.assign, secret=b"x" * 32)
    foreign.server.expect_ring(other, lambda _link, _hello: None)
    await up(*nodes)
    assert pair.answered() == Address(HOSTS[1], pair.port)
    foreign.server.close()
    pair.close()


async def test_only_wrong_hosts_end_the_ring_with_their_answer() -> None:
    pair, wrong = Pair(), Node(2)
    await pair.listen(wrong, HOSTS[0])
    nodes = await pair.form(HOSTS[0], listens=HOSTS[1])
    wrong.server.expect_ring(nodes[0].endpoint.assign, lambda _link, _hello: None)
    suspect, evidence, reason = await nodes[0].loss()
    assert (suspect, evidence) == ("worker-1", "reset")
    assert "WRONG_SOURCE" in reason
    assert nodes[0].endpoint.assign.generation == GENERATION
    wrong.server.close()
    pair.close()


async def test_addresses_without_a_listener_are_named_with_their_reasons() -> None:
    pair = Pair()
    nodes = await pair.form(*HOSTS[:2], listens=HOSTS[3], silence_s=1.0)
    suspect, evidence, reason = await nodes[0].loss()
    assert (suspect, evidence) == ("worker-1", "unreachable")
    assert all(f"{host}:{pair.port}: Conn" in reason for host in HOSTS[:2]), reason
    pair.close()
