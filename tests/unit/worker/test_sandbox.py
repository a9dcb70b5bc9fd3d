"""Whether a worker is in the sandbox that it promises, and which jobs it takes."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import pytest

from dtd.errors import ConfigError
from dtd.worker import host_checks
from dtd.worker.host_checks import check_sandbox, refuse_if_laxer


@pytest.fixture
def host(monkeypatch):
    """A host of which a test says what is writable and who can be reached."""
    made = SimpleNamespace(writable=set(), hidden=set(), reachable=set())

    def statvfs(place):
        if place in made.hidden:
            raise PermissionError(errno.EACCES, "hidden")
        return SimpleNamespace(f_flag=0 if place in made.writable else os.ST_RDONLY)

    class Socket:
        def __init__(self, family, kind):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_error):
            pass

        def sendto(self, octets, address):
            if address[0] not in made.reachable:
                raise PermissionError(errno.EPERM, "filtered")

    monkeypatch.setattr(host_checks.os, "statvfs", statvfs)
    monkeypatch.setattr(host_checks.socket, "socket", Socket)
    return made


def test_a_sandbox_without_holes(host):
    host.hidden.add("/root")
    check_sandbox("strict")


def test_nothing_is_looked_at_without_the_setting(host):
    host.writable, host.reachable = {"/"}, {"192.0.2.1"}
    check_sandbox("normal")


def test_all_holes_are_named(host):
    host.writable, host.reachable = {"/", "/srv"}, {"192.0.2.1", "2001:db8::1"}
    with pytest.raises(ConfigError) as caught:
        check_sandbox("strict")
    assert (
        "/, /srv can be written to; addresses outside the cluster, such as 192.0.2.1, 2001"
        in caught.value.message
    )
    assert "strict.conf" in caught.value.remedy


@pytest.mark.parametrize("attribute", ["writable", "reachable"])
def test_one_hole_is_enough(host, attribute):
    setattr(host, attribute, {"/var", "192.0.2.1"})
    with pytest.raises(ConfigError, match="but from here"):
        check_sandbox("strict")


@pytest.mark.parametrize(
    ("own", "wanted"),
    [("normal", "normal"), ("strict", "strict"), ("strict", "normal"), ("normal", "")],
)
def test_jobs_that_a_worker_takes(own, wanted):
    refuse_if_laxer(own, wanted)


def test_a_job_that_wants_more_than_a_worker_has_is_refused():
    with pytest.raises(ConfigError, match=r"sandbox = .strict.*no such sandbox"):
        refuse_if_laxer("normal", "strict")
