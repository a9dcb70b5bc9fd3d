"""The addresses of the coordinator, and names that belong to credentials."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace

import pytest

from dtd.address import Address
from dtd.config import CoordinatorConfig
from dtd.coordinator.connections import control_port as module
from dtd.coordinator.connections.control_port import ControlPort, advertised
from dtd.errors import ConfigError, ProtocolError
from dtd.net.addresses.interfaces import Interface
from dtd.security.authority import Authority
from dtd.security.identity import WORKER, Identity
from dtd.wire import messages as m


@pytest.mark.parametrize("listen", ["0.0.0.0", "::"])
def test_else_it_is_the_address_from_which_this_host_calls(
    listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ELSEWHERE", ((socket.AF_INET, "127.0.0.1"),))
    own = Interface(hosts=("127.0.0.1",), is_virtual=False, mbit_per_s=0)
    monkeypatch.setattr(module, "interfaces", lambda: [own])
    with pytest.raises(ConfigError, match="no address at which others could reach it") as caught:
        advertised("", Address(listen, 7117))
    assert "--advertise" in caught.value.remedy
    ethernet = Interface(hosts=("10.0.0.7",), is_virtual=False, mbit_per_s=0)
    monkeypatch.setattr(module, "interfaces", lambda: [own, ethernet])
    assert advertised("", Address(listen, 7117)) == (Address("10.0.0.7", 7117),)
    monkeypatch.setattr(module, "_primary_host", lambda: "10.0.0.9")
    assert advertised("", Address(listen, 7117)) == (Address("10.0.0.9", 7117),)


def test_a_clock_that_is_ahead_ends_nobodys_claim_to_a_name(tmp_path, monkeypatch):
    port = ControlPort(
        CoordinatorConfig(state_dir=tmp_path, socket=tmp_path / "s"),
        lambda: None,
        lambda *_why: None,
    )
    port.authority = Authority.create(tmp_path / "pki")
    port.authority.enrol(tmp_path / "w.credential", "worker", "host7", coordinators=())
    here = Identity(role=WORKER, name="uid 998", where="socket", uid=998)
    link = SimpleNamespace(identity=here, peer_host=lambda: "uid 998")
    register = m.Register(
        name="host7-cpu",
        incarnation=1,
        pid=1,
        host="h",
        device="cpu",
        data_host="",
        data_port=1,
        version="0",
    )
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 365 * 86400)
    with pytest.raises(ProtocolError, match="belongs to the credential worker/host7"):
        port.check(link, register)
