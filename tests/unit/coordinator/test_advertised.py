"""Under which addresses others reach the coordinator."""

from __future__ import annotations

import socket

import pytest

from dtd.address import Address
from dtd.coordinator import advertised as module
from dtd.coordinator.advertised import advertised
from dtd.errors import ConfigError


def test_what_is_set_counts_with_the_port_it_listens_on() -> None:
    found = advertised("head.example, 10.0.0.2:8000,[fd00::1]:9", Address("0.0.0.0", 7117))
    assert list(map(str, found)) == ["head.example:7117", "10.0.0.2:8000", "[fd00::1]:9"]


def test_an_address_of_its_own_needs_no_setting() -> None:
    assert advertised("", Address("10.0.0.1", 7117)) == (Address("10.0.0.1", 7117),)
    assert advertised("", Address("head.example", 1)) == (Address("head.example", 1),)
    assert advertised("", Address("127.0.0.1", 1)) == (Address("127.0.0.1", 1),)


@pytest.mark.parametrize("listen", ["0.0.0.0", "::"])
def test_else_it_is_the_address_from_which_this_host_calls(
    listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ELSEWHERE", ((socket.AF_INET, "127.0.0.1"),))
    assert "127.0.0.1" in [*module._interface_hosts()]
    monkeypatch.setattr(module, "_interface_hosts", lambda: iter(["127.0.0.1"]))
    with pytest.raises(ConfigError, match="no address at which others could reach it") as caught:
        advertised("", Address(listen, 7117))
    assert "--advertise" in caught.value.remedy
    monkeypatch.setattr(module, "_interface_hosts", lambda: iter(["127.0.0.1", "10.0.0.7"]))
    assert advertised("", Address(listen, 7117)) == (Address("10.0.0.7", 7117),)
    monkeypatch.setattr(module, "_primary_host", lambda: "10.0.0.9")
    assert advertised("", Address(listen, 7117)) == (Address("10.0.0.9", 7117),)
