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
from dtd.wire.messages.registry import Message, message


@message
class Probe(Message):
    """Coordinator to worker: can you fetch something from that worker's data port?"""

    name: Name
    host: Host
    port: U16
    ticket_expires_unix_s: U64 = 0
    ticket_key: Octets = field(default=b"", repr=False)


@message
class Probed(Message):
    """The answer to PROBE; `greeted` without `reachable`: only what is small comes through."""

    name: Name
    reachable: Flag
    reason: Words = ""
    greeted: Flag = False


@message
class GetPackage(Message):
    """Worker to coordinator: give me a package from this offset on; `kind` as in PUT_PACKAGE."""

    digest: Name
    offset: U64
    kind: Name = ""


@message
class Package(Message):
    """A piece of a package as payload; `size` is the whole, 0 when the coordinator lacks it."""

    digest: Name
    offset: U64
    size: U64


@message
class Measure(Message):
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


@message
class Measured(Message):
    """The answer to MEASURE; `reason` says why there are no figures."""

    number: U64
    figures: Map
    reason: Words = ""
    remedy: Words = ""


@message
class DropCheckpoint(Message):
    """Coordinator to worker: delete this checkpoint of an ended job from your disk."""

    job: Name
    identity: Name
    generation: Generation
    step: U64
    directory: Directory


@message
class CheckpointDropped(Message):
    """The answer to DROP_CHECKPOINT; `reason` says why it is still there."""

    directory: Directory
    reason: Words = ""
