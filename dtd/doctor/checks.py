"""The findings of `dtdctl doctor` about hosts and links, each a sentence and a remedy.  Pure.

A finding is "ok", "warn" (it works, and not as well as it could) or "fail" (it does not work).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from dtd.text import figures
from dtd.text.shown import counted

Level = Literal["ok", "warn", "fail"]
Values = Mapping[str, Any]

CLOCK_SKEW_S: Final = 1.0
DISK_WARN_BYTES: Final = 2 << 30
DISK_FAIL_BYTES: Final = 256 << 20
ROUND_TRIPS_IN_TIMEOUT: Final = 20
SLOW_LINK_SHARE: Final = 0.25
FASTER_ADDRESS: Final = 1.5
"""An address is worth naming if it carries so many times what the one in use does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's result: one sentence, and what to do if there is something."""

    check: str
    state: Level
    message: str
    remedy: str = ""


def ok(check: str, message: str, remedy: str = "") -> Finding:
    """It is as it should be."""
    return Finding(check=check, state="ok", message=message, remedy=remedy)


def warn(check: str, message: str, remedy: str) -> Finding:
    """It works, and not as well as it could."""
    return Finding(check=check, state="warn", message=message, remedy=remedy)


def fail(check: str, message: str, remedy: str = "") -> Finding:
    """It does not work."""
    return Finding(check=check, state="fail", message=message, remedy=remedy)


def check_coordinator(coordinator: Values, *, address: str, own_version: str) -> Iterator[Finding]:
    """The coordinator answers, and has the same version as this dtdctl."""
    version = coordinator["version"]
    said = f"the coordinator at {address} answers, dtd {version}"
    if version == own_version:
        yield ok("coordinator", said)
        return
    yield warn(
        "coordinator",
        f"{said}; this dtdctl is {own_version}",
        "install the same dtd version on both hosts",
    )


def check_versions(coordinator: Values, hosts: Mapping[str, Values]) -> Iterator[Finding]:
    """All workers run the coordinator's version."""
    version = coordinator["version"]
    odd = {name: host["version"] for name, host in hosts.items() if host["version"] != version}
    for name, other in odd.items():
        yield fail(
            "versions",
            f"{name} runs dtd {other}, the coordinator dtd {version}",
            f"install dtd {version} on {name}'s host and restart it",
        )
    if hosts and not odd:
        who = counted(len(hosts), "worker")
        yield ok("versions", f"{who}, all with dtd {version}")


def check_clocks(hosts: Mapping[str, Values], *, own_skew_s: float) -> Iterator[Finding]:
    """No clock differs much from the coordinator's; needed to read logs, not to train."""
    skews = {"this host": own_skew_s, **{name: host["skew_s"] for name, host in hosts.items()}}
    odd = {name: skew_s for name, skew_s in skews.items() if abs(skew_s) > CLOCK_SKEW_S}
    for name, skew_s in odd.items():
        way = "ahead of" if skew_s > 0 else "behind"
        yield warn(
            "clocks",
            f"the clock of {name} is {abs(skew_s):.1f} s {way} the coordinator's",
            "set it by NTP (timedatectl set-ntp true); credentials expire by the clock, and"
            " logs of several hosts cannot be compared",
        )
    if not odd:
        worst = max(map(abs, skews.values()))
        yield ok("clocks", f"all clocks are within {figures.span(worst)} of the coordinator's")


def check_disks(coordinator: Values, hosts: Mapping[str, Values]) -> Iterator[Finding]:
    """The state directories have room."""
    everywhere = {"the coordinator": coordinator, **hosts}
    fine = True
    for name, host in everywhere.items():
        free = host["disk_free_bytes"]
        if free >= DISK_WARN_BYTES:
            continue
        fine = False
        yield Finding(
            check="disk",
            state="fail" if free < DISK_FAIL_BYTES else "warn",
            message=f"{name} has {figures.size(free)} left in {host['state_dir']}",
            remedy="free some space, choose another directory with --state-dir, or lower "
            "checkpoint.keep",
        )
    if fine:
        least = min(everywhere, key=lambda name: everywhere[name]["disk_free_bytes"])
        free = figures.size(everywhere[least]["disk_free_bytes"])
        yield ok("disk", f"every state directory has {free} or more free (least: that of {least})")


def check_timeouts(
    coordinator: Values, hosts: Mapping[str, Values], links: Sequence[Values]
) -> Iterator[Finding]:
    """A heartbeat may be late by many round trips before a worker is suspected."""
    slowest_s = max(
        (*(host["round_trip_s"] for host in hosts.values()), *(link["rtt_s"] for link in links)),
        default=0.0,
    )
    timeout_s, interval_s = coordinator["heartbeat_timeout_s"], coordinator["heartbeat_interval_s"]
    wanted_s = 2 * interval_s + ROUND_TRIPS_IN_TIMEOUT * slowest_s
    said = f"heartbeat time-out {timeout_s:g} s, slowest round trip {figures.span(slowest_s)}"
    if timeout_s >= wanted_s:
        yield ok("timeouts", said)
        return
    yield warn(
        "timeouts",
        f"{said}: workers may be suspected without reason",
        f"set heartbeat_timeout_s of the coordinator to {wanted_s:.1f} or more",
    )


def check_ports(unreached: Sequence[Values], pairs: int) -> Iterator[Finding]:
    """Every worker reaches every other one's data port."""
    for failure in unreached:
        yield fail(
            "ports",
            f"{failure['to']} cannot fetch from {failure['from']}: {failure['reason']}",
            failure["remedy"]
            or f"open {failure['from']}'s data port in the firewall, or use --advertise to give "
            "an address that the others can reach",
        )
    if pairs and not unreached:
        yield ok("ports", f"every worker can reach every other worker ({pairs} directions)")


def check_links(links: Sequence[Values]) -> Iterator[Finding]:
    """No link is much slower than the others: the ring goes as fast as its slowest one."""
    rated = [link for link in links if link["bytes_per_s"]]
    if len(rated) < 2:
        return
    usual = statistics.median(link["bytes_per_s"] for link in rated)
    slow = [link for link in rated if link["bytes_per_s"] < SLOW_LINK_SHARE * usual]
    for link in slow:
        yield warn(
            "links",
            f"{link['from']} -> {link['to']} carries"
            f" {figures.bandwidth(link['bytes_per_s'])}, others {figures.bandwidth(usual)}: the "
            "whole ring is limited to that rate",
            "check the cable, the speed of the port and other traffic on the link",
        )
    if not slow:
        least = min(link["bytes_per_s"] for link in rated)
        yield ok("links", f"every link carries {figures.bandwidth(least)} or more")


def check_addresses(links: Sequence[Values]) -> Iterator[Finding]:
    """No worker has an address that carries much more than the one at which it is called."""
    for link in links:
        rates = link.get("others") or {}
        best = max(rates, key=lambda host: rates[host], default="")
        if not best or rates[best] < FASTER_ADDRESS * link["bytes_per_s"]:
            continue
        yield warn(
            "links",
            f"{link['to']} calls {link['from']} at {link['host']}, which carries"
            f" {figures.bandwidth(link['bytes_per_s'])}; {best} carries"
            f" {figures.bandwidth(rates[best])}",
            f'advertise = "{best}" in the worker.toml of {link["from"]} (or --advertise)',
        )
