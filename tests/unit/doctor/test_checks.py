"""Each check of the doctor: when it is content, when it warns or fails, and what it advises."""

from __future__ import annotations

import pytest

from dtd.doctor import checks

GIB = 1 << 30


def host(**changed):
    values = {
        "version": "1.0",
        "skew_s": 0.001,
        "round_trip_s": 0.0002,
        "disk_free_bytes": 50 * GIB,
        "state_dir": "/var/lib/dtd",
    }
    return values | changed


def coordinator(**changed):
    return host(heartbeat_timeout_s=1.5, heartbeat_interval_s=0.25) | changed


def link(sender, receiver, *, rtt_s=0.0002, bytes_per_s=1e8):
    return {"from": sender, "to": receiver, "rtt_s": rtt_s, "bytes_per_s": bytes_per_s}


def states(found):
    return [finding.state for finding in found]


def only(found):
    [finding] = list(found)
    return finding


def test_workers_versions():
    hosts = {"a": host(), "b": host(version="0.9")}
    odd = only(checks.check_versions(coordinator(), hosts))
    assert (odd.state, odd.message) == ("fail", "b runs dtd 0.9, the coordinator dtd 1.0")
    assert "install dtd 1.0 on b's host" in odd.remedy
    assert states(checks.check_versions(coordinator(), {"a": host()})) == ["ok"]
    assert states(checks.check_versions(coordinator(), {})) == []


@pytest.mark.parametrize(
    ("skew_s", "state", "words"),
    [(0.9, "ok", "within"), (1.5, "warn", "1.5 s ahead of"), (-2.0, "warn", "2.0 s behind")],
)
def test_clocks(skew_s, state, words):
    found = only(checks.check_clocks({"a": host(skew_s=skew_s)}, own_skew_s=0.0))
    assert found.state == state
    assert words in found.message


@pytest.mark.parametrize(("free", "state"), [(GIB, "warn"), (GIB // 10, "fail")])
def test_disks(free, state):
    found = only(checks.check_disks(coordinator(), {"a": host(disk_free_bytes=free)}))
    assert found.state == state
    assert found.message.startswith("a has")


def test_the_state_directory_with_the_least_room_is_named():
    said = "every state directory has 40.0 GiB or more free (least: that of {})"
    for ours, theirs, least in ((50, 40, "a"), (40, 50, "the coordinator")):
        hosts = {"a": host(disk_free_bytes=theirs * GIB)}
        found = only(checks.check_disks(coordinator(disk_free_bytes=ours * GIB), hosts))
        assert (found.state, found.message) == ("ok", said.format(least))


def test_a_faster_address_is_named():
    used = link("nas", "desk") | {"host": "192.168.1.4"}
    ways = {"10.0.0.4": 1.2e9, "fd00::4": 1.1e8}
    found = only(checks.check_addresses([used | {"others": ways}]))
    assert found.state == "warn"
    assert found.message == (
        "desk calls nas at 192.168.1.4, which carries 800 Mbit/s; 10.0.0.4 carries 9.6 Gbit/s"
    )
    assert found.remedy.startswith('advertise = "10.0.0.4" in the worker.toml of nas')
    beside = link("nas", "desk", bytes_per_s=None) | {"host": "192.168.1.4"}
    alike = used | {"others": {"fd00::4": 1.1e8}}
    assert states(checks.check_addresses([used, beside, alike, used | {"others": {}}])) == []


def test_a_slow_link_is_named():
    links = [link("a", "b"), link("b", "a"), link("a", "c", bytes_per_s=1e7)]
    found = only(checks.check_links(links))
    assert found.state == "warn"
    assert found.message.startswith("a -> c carries 80 Mbit/s, others 800 Mbit/s")
    assert states(checks.check_links(links[:2])) == ["ok"]
    assert states(checks.check_links([link("a", "b", bytes_per_s=None)] * 3)) == []
