"""What commonly keeps hosts from working together: each fault in one sentence, with what to do.

A trouble is shown where people look: in a worker's line of `systemctl status`, in `dtdctl status`
and in the log, as the event `trouble`.  The words stand here alone, so that all three, and the
table in docs/operations.md, say the same.  Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One fault.

    Attributes:
        kind: its name; with `where` it tells troubles apart.
        where: HOST:PORT, a host or a worker.
        message: one sentence without a full stop.
        remedy: what to do.
    """

    kind: str
    where: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message}: {self.remedy}" if self.remedy else self.message


_SOCKET: Final = "unix:"

# --- calling the coordinator -------------------------------------------------------------------


def no_answer(where: str, within_s: float) -> Trouble:
    """Nothing comes back: what is sent to the port is dropped, or the host is down."""
    return Trouble(
        kind="no-answer",
        where=where,
        message=f"no answer within {within_s:g} s from the coordinator at {where}",
        remedy="it may be starting, or be stuck: read its log"
        if where.startswith(_SOCKET)
        else "check that its host is up, and let TCP port"
        f" {where.rpartition(':')[2]} through its firewall",
    )


def nobody_listens(where: str) -> Trouble:
    """The host is up and refuses the connection."""
    return Trouble(
        kind="nobody-listens",
        where=where,
        message=f"nobody listens at the coordinator's address {where}",
        remedy="start the coordinator there (systemctl start dtd-coordinator), or name its right"
        " address with --coordinator",
    )


def may_not_open(where: str, uid: int) -> Trouble:
    """The socket's directory is closed to this user."""
    return Trouble(
        kind="may-not-open",
        where=where,
        message=f"uid {uid} may not open the coordinator's socket {where}",
        remedy="have its operator add the user to the group of the socket's directory (dtd), and to"
        " local_workers, local_viewers or local_operators; or join with a token",
    )


def not_followed(where: str, why: str, remedy: str) -> Trouble:
    """Somebody listens there who may be anybody."""
    return Trouble(
        kind="not-followed",
        where=where,
        message=f"who listens at {where} is not followed: {why}",
        remedy=remedy,
    )


def cannot_call(where: str, why: str) -> Trouble:
    """The operating system cannot make the connection: no route, no such name."""
    return Trouble(
        kind="cannot-call",
        where=where,
        message=f"the coordinator's address {where} cannot be called: {why}",
        remedy="check the address, and the network between both hosts",
    )


_CLOCKS: Final = (
    "compare `date -u` on both hosts, and have them keep time (timedatectl set-ntp true)"
)
_JOIN_AGAIN: Final = (
    "ask for a token (`dtdctl token create`), and run `dtd-worker join TOKEN` on {host}"
)
_SEE_PORT: Final = "check the port: it is no coordinator that serves other hosts"

# Who calls reads the left side, who is called the right one: cause as `dtd.security.tls_faults`
# names it -> kind, remedy.
_WHEN_CALLING: Final = {
    "its certificate is not valid yet: compare both clocks": ("clock", _CLOCKS),
    "its certificate has expired": ("clock", f"restart dtd-coordinator there, and {_CLOCKS}"),
    "this side's credential has expired": ("credential-expired", _JOIN_AGAIN),
    "this side's credential is revoked": ("credential-revoked", _JOIN_AGAIN),
    "this side's credential is not of its cluster": ("credential-foreign", _JOIN_AGAIN),
    "this side's credential is not accepted": (
        "credential-refused",
        f"{_CLOCKS}; if they agree, run `dtd-worker join TOKEN` again",
    ),
    "it wants a credential, and this side has none": ("credential-missing", _JOIN_AGAIN),
    "its certificate is not of this cluster": (
        "coordinator-foreign",
        "check the address; if the cluster was made anew, run `dtd-worker join TOKEN` again",
    ),
    "it does not speak TLS": ("no-tls", _SEE_PORT),
}
_WHEN_CALLED: Final = {
    "its certificate is not valid yet: compare both clocks": ("clock", _CLOCKS),
    "its certificate has expired": ("credential-expired", _JOIN_AGAIN),
    "its certificate is not of this cluster": ("credential-foreign", _JOIN_AGAIN),
    "this side's credential is not accepted": (
        "clock",
        f"{_CLOCKS}; if they agree, {_JOIN_AGAIN}",
    ),
    "this side's credential has expired": ("clock", _CLOCKS),
    "this side's credential is not of its cluster": ("credential-foreign", _JOIN_AGAIN),
    "it does not speak TLS": (
        "no-tls",
        "whoever calls from there lacks a credential, or is no dtd: see its command line",
    ),
}


TLS_CAUSES_WHEN_CALLING: Final = tuple(_WHEN_CALLING)
TLS_CAUSES_WHEN_CALLED: Final = tuple(_WHEN_CALLED)


def no_tls(where: str, cause: str) -> Trouble:
    """The TLS connection to the coordinator does not come about, or is ended by it.

    Args:
        where: its address.
        cause: as `dtd.security.tls_faults` says.
    """
    kind, remedy = _WHEN_CALLING.get(cause, ("tls", "read the log of the coordinator"))
    return Trouble(
        kind=kind,
        where=where,
        message=f"no TLS connection to the coordinator at {where}: {cause}",
        remedy=remedy.format(host="this host"),
    )


def hung_up(where: str) -> Trouble:
    """It ends the connection without a word, as it does with those whom it does not know."""
    if where.startswith(_SOCKET):
        return Trouble(
            kind="hung-up",
            where=where,
            message=f"the coordinator at {where} hung up without a word: it ends, or has too many"
            " callers",
            remedy="read its log; it is called again",
        )
    return Trouble(
        kind="credential-refused",
        where=where,
        message=f"the coordinator at {where} hung up without a word: it does not accept this"
        " host's credential, which may have expired",
        remedy=f"see `dtdctl status`, and {_CLOCKS}; if they agree, {_JOIN_AGAIN}".format(
            host="this host"
        ),
    )


REFUSED: Final = "refused"


def refused(where: str, why: str, remedy: str) -> Trouble:
    """The coordinator has said no, in words that it knows best."""
    return Trouble(
        kind=REFUSED,
        where=where,
        message=f"the coordinator at {where} refuses this worker: {why}",
        remedy=remedy or "read the log of the coordinator",
    )


# --- as the coordinator sees it ----------------------------------------------------------------


def turned_away(host: str, why: str, remedy: str = "") -> Trouble:
    """Somebody was turned away before or after he could show who he is."""
    kind, known = _WHEN_CALLED.get(why, ("turned-away", ""))
    return Trouble(
        kind=kind,
        where=host,
        message=f"{host} was turned away: {why}",
        remedy=remedy or known.format(host=host) or "look at the log of the worker there",
    )


def versions_differ(
    name: str, host: str, theirs: str, *, coordinator_host: str, ours: str
) -> Trouble:
    """A worker's release of dtd is not the coordinator's."""
    return Trouble(
        kind="version",
        where=name,
        message=f"{name} on {host} runs dtd {theirs}, the coordinator on {coordinator_host} dtd"
        f" {ours}",
        remedy=f"install dtd {ours} on {host}, or bring the coordinator to {theirs}",
    )


def protocol_differs(host: str, why: str) -> Trouble:
    """Somebody speaks another version of the protocol."""
    return Trouble(
        kind="protocol",
        where=host,
        message=f"{host} was turned away: {why}",
        remedy="install the same dtd version there as on the coordinator's host",
    )


def unfit(name: str, host: str, why: str) -> Trouble:
    """A worker cannot train with the others: other code, data, model or numerics."""
    message, _, remedy = why.partition(": have ")
    return Trouble(
        kind="unfit",
        where=name,
        message=f"{name} on {host} cannot train with the others: {message}",
        remedy=f"have {remedy}" if remedy else "install the same packages and data on both hosts",
    )


def set_aside(name: str, host: str, why: str) -> Trouble:
    """The job's code has failed on a worker, and goes on with the others."""
    return Trouble(
        kind="set-aside",
        where=name,
        message=f"{name} on {host} is set aside, since the job's code failed there: {why}",
        remedy="compare that host with the others (data, packages, memory, driver); it is tried"
        f" again by itself, and at once when {name} is started again",
    )


def name_taken(name: str, one: str, other: str) -> Trouble:
    """Two processes that both live go by the same name.

    Args:
        name: of both.
        one: where the one runs that keeps the name, with its process id.
        other: where the other one runs.
    """
    return Trouble(
        kind="name-taken",
        where=name,
        message=f"two workers call themselves {name}: one on {one}, one on {other}",
        remedy="give each worker a name of its own with --name, or stop one of them",
    )


# --- between workers ---------------------------------------------------------------------------


def no_way(one: str, one_at: str, other: str, other_at: str) -> Trouble:
    """Two workers do not reach each other's data ports.

    Args:
        one: a worker's name.
        one_at: HOST:PORT that the other one calls.
        other: the other worker's name.
        other_at: HOST:PORT that the first one calls.
    """
    return Trouble(
        kind="no-way",
        where=f"{one} - {other}",
        message=f"no connection between {one} (data port {one_at}) and {other} (data port"
        f" {other_at})",
        remedy="let both data ports through the firewalls (--listen HOST:PORT fixes one), and name"
        " with --advertise an address that the other worker reaches",
    )


_NARROW_REMEDY: Final = (
    "the path has a smaller MTU than the hosts' interfaces: find it with `ping -M do -s 1472 HOST`"
    " and smaller sizes, set it on both (`ip link set dev DEV mtu N`), and let ICMP"
    ' "fragmentation needed" through'
)


def narrow_way(one: str, one_at: str, other: str, other_at: str) -> Trouble:
    """What is small passes between two workers, and what is large does not.

    Args:
        one: a worker's name.
        one_at: HOST:PORT that the other one calls.
        other: the other worker's name.
        other_at: HOST:PORT that the first one calls.
    """
    return Trouble(
        kind="narrow-way",
        where=f"{one} - {other}",
        message=f"small packets pass between {one} (data port {one_at}) and {other} (data port"
        f" {other_at}), large ones are lost",
        remedy=_NARROW_REMEDY,
    )


def data_port_closed(name: str, where: str, why: str) -> Trouble:
    """Another worker's data port cannot be reached from here."""
    return Trouble(
        kind="no-way",
        where=where,
        message=f"the data port {where} of {name} cannot be reached from here: {why}",
        remedy=f"let the port through the firewall of {name}'s host, and name there with"
        " --advertise an address that other workers reach",
    )


def data_port_narrow(name: str, where: str, why: str) -> Trouble:
    """Another worker's data port answers, and what is large does not come from it."""
    return Trouble(
        kind="narrow-way",
        where=where,
        message=f"large packets from the data port {where} of {name} are lost: {why}",
        remedy=_NARROW_REMEDY,
    )


# --- on one host -------------------------------------------------------------------------------


def cannot_listen(where: str, why: str) -> Trouble:
    """An address cannot be bound."""
    return Trouble(
        kind="cannot-listen",
        where=where,
        message=f"listen address {where} {why}",
        remedy="choose another with --listen",
    )


def stands_still(name: str, host: str, why: str, kept: str) -> Trouble:
    """A worker's training thread is stuck, and the worker is needed all the same."""
    return Trouble(
        kind="stands-still",
        where=name,
        message=f"{name} on {host} stands still and is kept, since {kept}: {why}",
        remedy=f"look what it waits for; `dtdctl kill-worker {name}` gives its memory up,"
        " `dtdctl cancel` ends the job; where such pauses are normal, raise"
        " elastic.stall_timeout_s",
    )


def disk(where: str, why: str) -> Trouble:
    """A disk does not take what has to be written."""
    return Trouble(
        kind="disk",
        where=where,
        message=f"{where} cannot write: {why}",
        remedy=f"make room on the disk there (df -h), or repair it; {where} tries again by itself",
    )
