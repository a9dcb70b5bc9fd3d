"""Common faults that keep hosts from working together: one sentence and a remedy for each.

A diagnostic is shown in a worker's line of `systemctl status`, in `dtdctl status` and in the log,
as the event `trouble`.  All texts are defined here only, so that these three and the table in
docs/operations.md agree.  Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One fault.

    Attributes:
        kind: its name; with `where` it tells diagnostics apart.
        where: HOST:PORT, a host or a worker.
        times: where a certificate was compared with a clock: its validity, and what the clock
            shows.  Diagnostics that differ in nothing else are equal.
    """

    kind: str
    where: str
    message: str
    remedy: str
    times: str = field(default="", compare=False)

    @property
    def sentence(self) -> str:
        return f"{self.message} ({self.times})" if self.times else self.message

    def __str__(self) -> str:
        return f"{self.sentence}: {self.remedy}" if self.remedy else self.sentence


_SOCKET: Final = "unix:"

# --- calling the coordinator -------------------------------------------------------------------


def no_answer(where: str, within_s: float, *, is_there: bool = False) -> Diagnostic:
    """Nothing comes back: what is sent to the port is dropped, or the host is down.

    Unless the coordinator `is_there`: it has taken the connection.
    """
    return Diagnostic(
        kind="no-answer",
        where=where,
        message=f"no answer within {within_s:g} s from the coordinator at {where}",
        remedy="it may still be starting, be busy or be stuck: read its log"
        if is_there or where.startswith(_SOCKET)
        else "check that its host is up, and let TCP port"
        f" {where.rpartition(':')[2]} through its firewall",
    )


def nobody_listens(where: str) -> Diagnostic:
    """The host is up and refuses the connection."""
    return Diagnostic(
        kind="nobody-listens",
        where=where,
        message=f"nothing listens at the coordinator's address {where}",
        remedy="start the coordinator there (systemctl start dtd-coordinator), or give its "
        "correct address with --coordinator",
    )


def may_not_open(where: str, uid: int) -> Diagnostic:
    """The socket's directory is closed to this user."""
    return Diagnostic(
        kind="may-not-open",
        where=where,
        message=f"uid {uid} may not open the coordinator's socket {where}",
        remedy="have its operator add the user to the group of the socket's directory (dtd), and to"
        " local_workers, local_viewers or local_operators; or join with a token",
    )


def not_followed(where: str, why: str, remedy: str) -> Diagnostic:
    """An unauthenticated process listens there."""
    return Diagnostic(
        kind="not-followed",
        where=where,
        message=f"the coordinator at {where} is rejected: {why}",
        remedy=remedy,
    )


def cannot_call(where: str, why: str) -> Diagnostic:
    """The operating system cannot make the connection: no route, no such name."""
    return Diagnostic(
        kind="cannot-call",
        where=where,
        message=f"cannot connect to the coordinator's address {where}: {why}",
        remedy="check the address, and the network between both hosts",
    )


CLOCK_REMEDY: Final = (
    "compare `date -u` on both hosts, and synchronize both clocks (timedatectl set-ntp true)"
)
_JOIN_AGAIN: Final = (
    "ask for a token (`dtdctl token create`), and run `dtd-worker join TOKEN` on {host}"
)
_SEE_PORT: Final = "check the port: no coordinator that serves other hosts listens there"

# By cause, for the connecting side and for the accepting side: cause as `dtd.net.clients.tls`
# names it -> kind, remedy.
_WHEN_CALLING: Final = {
    "its certificate is not valid yet by this host's clock": ("clock", CLOCK_REMEDY),
    "its certificate has expired by this host's clock": (
        "clock",
        f"restart dtd-coordinator there, and {CLOCK_REMEDY}",
    ),
    "this side's credential has expired by the other host's clock": (
        "credential-expired",
        f"{CLOCK_REMEDY}; if they agree, {_JOIN_AGAIN}",
    ),
    "this side's credential is revoked": ("credential-revoked", _JOIN_AGAIN),
    "this side's credential is from another cluster": ("credential-foreign", _JOIN_AGAIN),
    "this side's credential is not accepted": (
        "credential-refused",
        f"{CLOCK_REMEDY}; if they agree, run `dtd-worker join TOKEN` again",
    ),
    "it requires a credential, and this side has none": ("credential-missing", _JOIN_AGAIN),
    "its certificate is from another cluster": (
        "coordinator-foreign",
        "check the address; if the cluster was recreated, run `dtd-worker join TOKEN` again",
    ),
    "it does not speak TLS": ("no-tls", _SEE_PORT),
}
_WHEN_CALLED: Final = {
    "its certificate is not valid yet by this host's clock": ("clock", CLOCK_REMEDY),
    "its certificate has expired by this host's clock": (
        "credential-expired",
        f"{CLOCK_REMEDY}; if they agree, {_JOIN_AGAIN}",
    ),
    "its certificate is from another cluster": ("credential-foreign", _JOIN_AGAIN),
    "this side's credential is not accepted": (
        "clock",
        f"{CLOCK_REMEDY}; if they agree, {_JOIN_AGAIN}",
    ),
    "this side's credential has expired by the other host's clock": ("clock", CLOCK_REMEDY),
    "this side's credential is from another cluster": ("credential-foreign", _JOIN_AGAIN),
    "it does not speak TLS": (
        "no-tls",
        "the client at that address has no credential or is not dtd: check its command line",
    ),
}


OF_TIME: Final = frozenset({"clock", "credential-expired", "credential-refused"})
"""Kinds for which the times of certificates matter."""

TLS_CAUSES_WHEN_CALLING: Final = tuple(_WHEN_CALLING)
TLS_CAUSES_WHEN_CALLED: Final = tuple(_WHEN_CALLED)


def no_tls(where: str, cause: str) -> Diagnostic:
    """The TLS connection to the coordinator cannot be established, or the coordinator closed it."""
    kind, remedy = _WHEN_CALLING.get(cause, ("tls", "read the log of the coordinator"))
    return Diagnostic(
        kind=kind,
        where=where,
        message=f"no TLS connection to the coordinator at {where}: {cause}",
        remedy=remedy.format(host="this host"),
    )


def hung_up(where: str, *, is_there: bool = False) -> Diagnostic:
    """The coordinator closes the connection without a reason, as it does with unknown peers.

    Unless it `is_there`: it has welcomed this side.
    """
    if is_there or where.startswith(_SOCKET):
        return Diagnostic(
            kind="hung-up",
            where=where,
            message=f"the coordinator at {where} closed the connection without a reason: it is "
            "shutting down, or has too many connections",
            remedy="read its log if it does not answer soon",
        )
    return Diagnostic(
        kind="credential-refused",
        where=where,
        message=f"the coordinator at {where} closed the connection without a reason: it does not "
        "accept this host's credential, which may have expired by its clock",
        remedy=f"see `dtdctl status`, and {CLOCK_REMEDY}; if they agree, {_JOIN_AGAIN}".format(
            host="this host"
        ),
    )


REFUSED: Final = "refused"


def refused(where: str, why: str, remedy: str) -> Diagnostic:
    """The coordinator refuses the worker, and gives the reason itself."""
    return Diagnostic(
        kind=REFUSED,
        where=where,
        message=f"the coordinator at {where} refuses this worker: {why}",
        remedy=remedy or "read the log of the coordinator",
    )


# --- faults that the coordinator sees ----------------------------------------------------------


def turned_away(host: str, why: str, remedy: str = "", times: str = "") -> Diagnostic:
    """A peer was rejected before or after it could authenticate."""
    kind, known = _WHEN_CALLED.get(why, ("turned-away", ""))
    # It is read on other hosts, too.
    why, times = (text.replace("this host's", "the coordinator's") for text in (why, times))
    return Diagnostic(
        kind=kind,
        where=host,
        message=f"{host} was rejected: {why}",
        remedy=remedy or known.format(host=host) or "read the worker's log there",
        times=times,
    )


def versions_differ(
    name: str, host: str, theirs: str, *, coordinator_host: str, ours: str
) -> Diagnostic:
    """A worker and the coordinator run different releases of dtd."""
    return Diagnostic(
        kind="version",
        where=name,
        message=f"{name} on {host} runs dtd {theirs}, the coordinator on {coordinator_host} runs "
        f"dtd {ours}",
        remedy=f"install dtd {ours} on {host}, or dtd {theirs} on the coordinator's host",
    )


def protocol_differs(host: str) -> Diagnostic:
    """A peer uses another version of the protocol; none of its own text is shown."""
    return Diagnostic(
        kind="protocol",
        where=host,
        message=f"{host} was rejected: it uses another version of the protocol",
        remedy="install the same dtd version there as on the coordinator's host",
    )


def unfit(name: str, host: str, why: str) -> Diagnostic:
    """A worker cannot train with the others: other code, data, model or numerics."""
    message, _, remedy = why.partition(": have ")
    return Diagnostic(
        kind="unfit",
        where=name,
        message=f"{name} on {host} cannot train with the others: {message}",
        remedy=f"have {remedy}" if remedy else "install the same packages and data on both hosts",
    )


def set_aside(name: str, host: str, why: str) -> Diagnostic:
    """The job's code has failed on one worker, or since it joined; the others continue."""
    return Diagnostic(
        kind="set-aside",
        where=name,
        message=f"{name} on {host} is excluded because the job failed there: {why}",
        remedy="compare that host with the others (data, packages, memory, driver), or, if others "
        "fail since it joined, give each worker more rows (job.global_batch_size); it is retried "
        f"automatically, and immediately when {name} is restarted",
    )


def name_taken(name: str, one: str, other: str) -> Diagnostic:
    """Two living processes use the same name."""
    return Diagnostic(
        kind="name-taken",
        where=name,
        message=f"two workers use the name {name}: one on {one}, one on {other}",
        remedy="give each worker its own name with --name, or stop one of them",
    )


# --- between workers ---------------------------------------------------------------------------


def no_way(one: str, one_at: str, other: str, other_at: str) -> Diagnostic:
    """Two workers do not reach each other's data ports, each at HOST:PORT."""
    return Diagnostic(
        kind="no-way",
        where=f"{one} - {other}",
        message=f"no connection between {one} (data port {one_at}) and {other} (data port"
        f" {other_at})",
        remedy="allow both data ports through the firewalls (--listen HOST:PORT sets a fixed "
        "port), and set --advertise to an address that the other worker can reach",
    )


def one_way(by: str, other: str, other_at: str) -> Diagnostic:
    """One worker does not reach another one, which reaches it."""
    return Diagnostic(
        kind="one-way",
        where=f"{by} - {other}",
        message=f"{by} does not reach {other} (data port {other_at}), and {other} reaches {by}:"
        " one way is closed",
        remedy=f"check that {by}'s host can connect to {other_at}: allow that port through the"
        f" firewall, or correct --advertise of {other}",
    )


_NARROW_REMEDY: Final = (
    "the path has a smaller MTU than the hosts' interfaces: find it with `ping -M do -s 1472 HOST`"
    " and smaller sizes, set it on both (`ip link set dev DEV mtu N`), and let ICMP"
    ' "fragmentation needed" through'
)


def narrow_way(one: str, one_at: str, other: str, other_at: str) -> Diagnostic:
    """Small packets pass between two workers, and large ones do not."""
    return Diagnostic(
        kind="narrow-way",
        where=f"{one} - {other}",
        message=f"small packets pass between {one} (data port {one_at}) and {other} (data port"
        f" {other_at}), but large ones are lost",
        remedy=_NARROW_REMEDY,
    )


def data_port_closed(name: str, where: str, why: str) -> Diagnostic:
    """Another worker's data port cannot be reached from here."""
    return Diagnostic(
        kind="no-way",
        where=where,
        message=f"the data port {where} of {name} cannot be reached from here: {why}",
        remedy=f"allow the port through the firewall of {name}'s host, and set --advertise there "
        "to an address that other workers can reach",
    )


def data_port_narrow(name: str, where: str, why: str) -> Diagnostic:
    """Another worker's data port answers, but large packets from it do not arrive."""
    return Diagnostic(
        kind="narrow-way",
        where=where,
        message=f"large packets from the data port {where} of {name} are lost: {why}",
        remedy=_NARROW_REMEDY,
    )


# --- on one host -------------------------------------------------------------------------------


def cannot_listen(where: str, why: str) -> Diagnostic:
    """An address cannot be bound."""
    return Diagnostic(
        kind="cannot-listen",
        where=where,
        message=f"listen address {where} {why}",
        remedy="choose another with --listen",
    )


def stands_still(name: str, host: str, why: str, kept: str) -> Diagnostic:
    """A worker's training thread is stuck, but the worker must not be evicted."""
    return Diagnostic(
        kind="stands-still",
        where=name,
        message=f"{name} on {host} has stalled but is not restarted, because {kept}: {why}",
        remedy=f"check what it is waiting for; `dtdctl kill-worker {name}` discards what is in "
        "its memory, `dtdctl cancel` ends the job; if such pauses are normal, raise"
        " elastic.stall_timeout_s",
    )


def disk(where: str, why: str) -> Diagnostic:
    """Data cannot be written to a disk."""
    return Diagnostic(
        kind="disk",
        where=where,
        message=f"{where} cannot write: {why}",
        remedy=f"free space on the disk there (df -h), or repair it; {where} retries automatically",
    )
