"""Worker and coordinator: what is asked and answered beside the training."""

from __future__ import annotations

from dataclasses import field

from dtd.wire.fields import (
    U16,
    U64,
    Directory,
    Flag,
    Generation,
    Host,
    Map,
    Name,
    Octets,
    Words,
)
from dtd.wire.messages.registry import message


@message(0x23)
class Probe:
    """Coordinator to worker: can you fetch something from that worker's data port?"""

    name: Name
    host: Host
    port: U16
    ticket_expires_unix_s: U64 = 0
    ticket_key: Octets = field(default=b"", repr=False)


@message(0x24)
class Probed:
    """The answer to PROBE; `greeted` without `reachable`: only what is small comes through."""

    name: Name
    reachable: Flag
    reason: Words = ""
    greeted: Flag = False


@message(0x25)
class GetPackage:
    """Worker to coordinator: give me a package from this offset on; `kind` as in PUT_PACKAGE."""

    digest: Name
    offset: U64
    kind: Name = ""


@message(0x26)
class Package:
    """A piece of a package as payload; `size` is the whole, 0 when the coordinator lacks it."""

    digest: Name
    offset: U64
    size: U64


@message(0x27)
class Measure:
    """Coordinator to worker: measure this and answer with MEASURED.

    `what`: "host" (clock, disk), "latency" or "bandwidth" (of the link from worker `name` to this
    one) or "step" (of the job `spec` for worlds of 1 to `worlds` workers); `package` as in PREPARE.
    """

    number: U64
    what: Name
    name: Name = ""
    host: Host = ""
    port: U16 = 0
    ticket_expires_unix_s: U64 = 0
    ticket_key: Octets = field(default=b"", repr=False)
    spec: Map
    worlds: U16 = 0
    package: Name = ""


@message(0x28)
class Measured:
    """The answer to MEASURE; `reason` says why there are no figures."""

    number: U64
    figures: Map
    reason: Words = ""
    remedy: Words = ""


@message(0x2B)
class DropCheckpoint:
    """Coordinator to worker: delete this checkpoint of an ended job from your disk."""

    job: Name
    identity: Name
    generation: Generation
    step: U64
    directory: Directory


@message(0x2C)
class CheckpointDropped:
    """The answer to DROP_CHECKPOINT; `reason` says why it is still there."""

    directory: Directory
    reason: Words = ""


ErrandMessage = (
    Probe | Probed | GetPackage | Package | Measure | Measured | DropCheckpoint | CheckpointDropped
)
