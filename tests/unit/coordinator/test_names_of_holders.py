"""A worker of the coordinator's host takes nobody's name while the host's clock is wrong."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from dtd.config import CoordinatorConfig
from dtd.coordinator.control_port import ControlPort
from dtd.errors import ProtocolError
from dtd.net.limits import Connections
from dtd.security.authority import Authority
from dtd.security.identity import WORKER, Identity
from dtd.wire import messages as m

YEAR_S = 365 * 86400.0


def test_a_clock_that_is_ahead_ends_nobodys_claim_to_a_name(tmp_path, monkeypatch):
    port = ControlPort(
        CoordinatorConfig(state_dir=tmp_path, socket=tmp_path / "s"),
        lambda: None,
        time.monotonic,
        lambda *_why: None,
        Connections(in_all=64),
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
    monkeypatch.setattr(time, "time", lambda: now() + YEAR_S)
    with pytest.raises(ProtocolError, match="belongs to the credential worker/host7"):
        port.check(link, register)
