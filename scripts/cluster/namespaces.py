"""Kernel namespaces that vanish with this process, and networks between them.

A namespace lives as long as something holds it.  Here that is a file descriptor of this process and
the daemons that run inside, which die with this process; so there is nothing to clean up, not even
after SIGKILL, and no run can meet the leftovers of another one.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeVar

Kind = Literal["net", "mnt"]
_FLAGS: Final[dict[Kind, int]] = {"net": 0x40000000, "mnt": 0x00020000}
_CLONE_FS: Final = 0x00000200
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")


class Namespace:
    """A new namespace of one kind.

    Raises:
        OSError: this process may not make one.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._fd = in_thread(self._unshare)

    @property
    def path(self) -> str:
        """A path to it, for `nsenter`, `ip` and children of this process."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def wrapped(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` inside, as the same process."""
        option = "--net" if self.kind == "net" else "--mount"
        return ["/usr/bin/nsenter", f"{option}={self.path}", *command]

    def run(self, *command: str) -> None:
        """Run a program inside to its end; raises CalledProcessError with its output."""
        subprocess.run(self.wrapped(command), check=True, capture_output=True)

    def enter(self) -> None:
        """Move the calling thread, which must end there, inside."""
        if self.kind == "mnt":
            _check(_LIBC.unshare(_CLONE_FS), "unshare")
        _check(_LIBC.setns(self._fd, _FLAGS[self.kind]), "setns")

    def inside(self, function: Callable[[], T]) -> T:
        """Call a function inside; sockets that it opens belong there for good."""

        def call() -> T:
            self.enter()
            return function()

        return in_thread(call)

    def close(self) -> None:
        """Let go of it; it ends with the last process inside."""
        os.close(self._fd)

    def _unshare(self) -> int:
        _check(_LIBC.unshare(_FLAGS[self.kind]), "unshare")
        return os.open(f"/proc/thread-self/ns/{self.kind}", os.O_RDONLY)


def may_make(kind: Kind) -> bool:
    """Whether this process may make namespaces of this kind, and configure them."""
    if os.geteuid() != 0:
        return False
    try:
        Namespace(kind).close()
    except OSError:
        return False
    return True


def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread of its own, which ends with it."""
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


# --- an Ethernet between namespaces ---------------------------------------------------------------

HUB: Final = "hub"
PORT: Final = "eth0"
_BRIDGE: Final = "bridge"
_SUBNET: Final = "10.77.0."
_HUB_NUMBER: Final = 254
_NOBODY: Final = 255


class Ethernet:
    """A namespace for each host, and one cable from each to a bridge, in a namespace of its own.

    Nothing of it is in the machine's own network, and all of it ends with this process.

    Args:
        hosts: their names.
        shape: what each end of a cable sends through, as `tc qdisc` writes it; empty: no limit.
        shapes: the same for the cables of some hosts, by name, instead.
        resolved: hardware addresses are set beforehand, so that `cut` can change them.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        shape: Sequence[str] = (),
        shapes: Mapping[str, Sequence[str]] | None = None,
        resolved: bool = True,
    ) -> None:
        self._numbers = {HUB: _HUB_NUMBER, **{name: n for n, name in enumerate(hosts, start=1)}}
        self.spaces = {name: Namespace("net") for name in self._numbers}
        hub = self.spaces[HUB]
        hub.run("ip", "link", "add", "name", _BRIDGE, "type", "bridge")
        for name in hosts:
            peer = ("peer", "name", PORT, "netns", self.spaces[name].path)
            hub.run("ip", "link", "add", "name", self._cable(name), "type", "veth", *peer)
            hub.run("ip", "link", "set", "dev", self._cable(name), "master", _BRIDGE, "up")
        for name, space in self.spaces.items():
            self._set_up(name, space)
        for name in hosts:
            # The hub forwards nothing, but a host knows by it which of its addresses is for others.
            self.spaces[name].run("ip", "route", "add", "default", "via", self.ip(HUB))
            limit = (shapes or {}).get(name, shape)
            if limit:
                for space, device in ((hub, self._cable(name)), (self.spaces[name], PORT)):
                    space.run("tc", "qdisc", "add", "dev", device, "root", *limit)
        if resolved:
            for sender in self._numbers:
                for receiver in self._numbers:
                    self.restore(sender, receiver)

    def ip(self, name: str) -> str:
        return f"{_SUBNET}{self._numbers[name]}"

    def cut(self, sender: str, receiver: str) -> None:
        """From now on nothing that one host sends arrives at the other one; without any sign."""
        self._resolve(sender, receiver, _NOBODY)

    def restore(self, sender: str, receiver: str) -> None:
        self._resolve(sender, receiver, self._numbers[receiver])

    def pull_out(self, name: str) -> None:
        """Pull out a host's cable."""
        self.spaces[HUB].run("ip", "link", "set", "dev", self._cable(name), "down")

    def plug_in(self, name: str) -> None:
        self.spaces[HUB].run("ip", "link", "set", "dev", self._cable(name), "up")

    def neighbours(self, name: str) -> str:
        """Lines of /etc/hosts for all other hosts."""
        others = [other for other in self._numbers if other not in (name, HUB)]
        return "".join(f"{self.ip(other)} {other}\n" for other in others)

    def close(self) -> None:
        for space in self.spaces.values():
            space.close()

    def _cable(self, name: str) -> str:
        return f"cable{self._numbers[name]}"

    def _set_up(self, name: str, space: Namespace) -> None:
        device = _device(name)
        space.run("ip", "link", "set", "dev", "lo", "up")
        space.run("ip", "link", "set", "dev", device, "address", _hardware(self._numbers[name]))
        space.run("ip", "address", "add", f"{self.ip(name)}/24", "dev", device)
        space.run("ip", "link", "set", "dev", device, "up")

    def _resolve(self, sender: str, receiver: str, number: int) -> None:
        if sender != receiver:
            entry = (self.ip(receiver), "lladdr", _hardware(number), "dev", _device(sender))
            self.spaces[sender].run("ip", "neighbour", "replace", *entry, "nud", "permanent")


def _device(name: str) -> str:
    return _BRIDGE if name == HUB else PORT


def _hardware(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"
