"""The addresses that a worker offers: which, and in which order."""

from __future__ import annotations

import ipaddress

from dtd.net.addresses.interfaces import Interface, interfaces, offered
from dtd.wire.fields import HOSTS


def interface(*hosts: str, virtual: bool = False, rate: int = 0) -> Interface:
    return Interface(hosts=hosts, is_virtual=virtual, mbit_per_s=rate)


def test_hardware_comes_before_bridges_and_fast_before_slow() -> None:
    found = offered(
        [
            interface("127.0.0.1", "::1", virtual=True),
            interface("172.17.0.1", virtual=True, rate=10_000),
            interface("192.168.1.5"),
            interface("10.0.0.5", rate=1_000),
            interface("10.9.0.5", rate=25_000),
        ],
        ipv4_only=False,
    )
    assert found == ("10.9.0.5", "10.0.0.5", "192.168.1.5", "172.17.0.1")


def test_addresses_that_no_other_host_can_use_are_left_out() -> None:
    alone = interface("127.0.0.1", "169.254.3.4", "fe80::1", "::1")
    assert offered([alone], ipv4_only=False) == ()


def test_each_interface_offers_one_address_of_either_kind() -> None:
    both = interface("fd00::7", "fd00::8", "10.0.0.5", "10.0.0.6")
    assert offered([both], ipv4_only=False) == ("10.0.0.5", "fd00::7")
    assert offered([both], ipv4_only=True) == ("10.0.0.5",)


def test_no_more_are_offered_than_a_message_may_have() -> None:
    many = [interface(f"10.0.{n}.1") for n in range(2 * HOSTS)]
    assert offered(many, ipv4_only=False) == tuple(f"10.0.{n}.1" for n in range(HOSTS))


def test_the_kernel_names_the_loopback_interface() -> None:
    hosts = [host for one in interfaces() for host in one.hosts]
    assert "127.0.0.1" in hosts
    assert all(ipaddress.ip_address(host) for host in hosts)
