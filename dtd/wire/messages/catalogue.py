"""One table of all messages: number, name, module, sender and payload limit (protocol.md).

A message is declared in its module, as a dataclass of its fields; everything else about it is
defined here and nowhere else.  A module is loaded when one of its messages is used or arrives, so
that a dtdctl command does not create classes that only workers need.  Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES, LARGEST_MAX_PAYLOAD_BYTES

MAX_WORD_BYTES: Final = 32 * 1024


class Role(enum.StrEnum):
    """The role of the side that opens a connection."""

    WORKER = "worker"
    CTL = "ctl"
    RING = "ring"
    LIFELINE = "lifeline"
    FETCH = "fetch"
    JOIN = "join"
    STAR = "star"


Roles = frozenset[Role]

_NONE: Final[Roles] = frozenset()
_ALL: Final[Roles] = frozenset(Role)
_WORKER: Final[Roles] = frozenset({Role.WORKER})
_CTL: Final[Roles] = frozenset({Role.CTL})
_RING: Final[Roles] = frozenset({Role.RING})
_STAR: Final[Roles] = frozenset({Role.STAR})
_FETCH: Final[Roles] = frozenset({Role.FETCH})
_JOIN: Final[Roles] = frozenset({Role.JOIN})

_SMALL: Final = DEFAULT_MAX_PAYLOAD_BYTES
_LARGE: Final = LARGEST_MAX_PAYLOAD_BYTES


class Kind(NamedTuple):
    """The fixed properties of one message.

    Attributes:
        module: the module of its class, below `dtd.wire.messages`.
        number: the value of "t" in its header.
        name: the name of its class; protocol.md writes HEARTBEAT_ACK for HeartbeatAck.
        opener: the roles in which the opening side may send it once the connection is open.
        acceptor: the roles in which the accepting side may.
        max_payload_bytes: the most bytes of payload it may carry; 0: it carries none.
    """

    module: str
    number: int
    name: str
    opener: Roles = _NONE
    acceptor: Roles = _NONE
    max_payload_bytes: int = 0


KINDS: Final = (
    # What every connection begins and ends with; the first, second and fifth only before it is open
    Kind("connection", 0x01, "Hello"),
    Kind("connection", 0x02, "Welcome"),
    Kind("connection", 0x03, "Error", _ALL, _ALL),
    Kind("connection", 0x04, "Goodbye", _ALL, _ALL),
    Kind("connection", 0x05, "Prove"),
    # Credentials
    Kind("connection", 0x06, "GetAuthority", _JOIN),
    Kind("connection", 0x07, "Authority", _NONE, _JOIN),
    Kind("connection", 0x08, "Enrol", _JOIN),
    Kind("connection", 0x09, "Enrolled", _NONE, _JOIN),
    Kind("connection", 0x0A, "Renew", _WORKER | _CTL),
    Kind("connection", 0x0B, "Renewed", _NONE, _WORKER | _CTL),
    # Worker and coordinator: membership of the ring
    Kind("control", 0x10, "Register", _WORKER),
    Kind("control", 0x11, "Registered", _NONE, _WORKER),
    Kind("control", 0x12, "Heartbeat", _WORKER),
    Kind("control", 0x13, "HeartbeatAck", _NONE, _WORKER),
    Kind("control", 0x14, "Prepare", _NONE, _WORKER),
    Kind("control", 0x15, "Warmed", _WORKER),
    Kind("control", 0x16, "Assign", _NONE, _WORKER),
    Kind("control", 0x17, "Running", _WORKER),
    Kind("control", 0x18, "Freeze", _NONE, _WORKER),
    Kind("control", 0x19, "Frozen", _WORKER),
    Kind("control", 0x1A, "Finished", _WORKER),
    Kind("control", 0x1B, "Failed", _WORKER),
    Kind("control", 0x1C, "Release", _NONE, _WORKER),
    Kind("control", 0x22, "Leave", _WORKER),
    Kind("control", 0x2A, "Save", _NONE, _WORKER),
    Kind("control", 0x4B, "Signal", _NONE, _WORKER),
    Kind("control", 0x6C, "JoinJob", _WORKER),
    Kind("control", 0x6D, "Joined", _NONE, _WORKER),
    # Worker to coordinator: results of a job
    Kind("requests", 0x1D, "Evaluated", _WORKER),
    Kind("requests", 0x1E, "CheckpointSaved", _WORKER),
    Kind("requests", 0x1F, "JobOutput", _WORKER, _NONE, _LARGE),
    Kind("requests", 0x20, "Notice", _WORKER),
    Kind("requests", 0x21, "Progress", _WORKER),
    Kind("requests", 0x29, "Agreed", _WORKER),
    # Worker and coordinator: requests beside the training
    Kind("requests", 0x23, "Probe", _NONE, _WORKER),
    Kind("requests", 0x24, "Probed", _WORKER),
    Kind("requests", 0x25, "GetPackage", _WORKER),
    Kind("requests", 0x26, "Package", _NONE, _WORKER, _SMALL),
    Kind("requests", 0x27, "Measure", _NONE, _WORKER),
    Kind("requests", 0x28, "Measured", _WORKER),
    Kind("requests", 0x2B, "DropCheckpoint", _NONE, _WORKER),
    Kind("requests", 0x2C, "CheckpointDropped", _WORKER),
    Kind("requests", 0x2D, "GetParts", _WORKER),
    Kind("requests", 0x2E, "Parts", _NONE, _WORKER),
    Kind("requests", 0x2F, "GetData", _WORKER),
    Kind("requests", 0x6E, "DataSources", _NONE, _WORKER),
    # Rank and next rank, or rank and server
    Kind("data", 0x30, "Chunk", _RING | _STAR, _STAR, _LARGE),
    Kind("data", 0x31, "SmallGather", _RING, _NONE, MAX_WORD_BYTES),
    Kind("data", 0x32, "LinkHeartbeat", _RING | _STAR, _RING | _STAR),
    Kind("data", 0x33, "ShmOffer", _RING),
    Kind("data", 0x34, "ShmRequest", _NONE, _RING),
    Kind("data", 0x35, "ShmMapped", _NONE, _RING),
    Kind("data", 0x36, "ShmReleased", _NONE, _RING),
    Kind("data", 0x37, "CodedChunk", _RING | _STAR, _STAR, _LARGE),
    # Client that fetches a state or a checkpoint, and its holder
    Kind("data", 0x38, "FetchOpen", _FETCH),
    Kind("data", 0x39, "FetchInfo", _NONE, _FETCH, _LARGE),
    Kind("data", 0x3A, "FetchRange", _FETCH),
    Kind("data", 0x3B, "FetchData", _NONE, _FETCH, _LARGE),
    # dtdctl and coordinator
    Kind("ctl", 0x40, "SubmitJob", _CTL),
    Kind("ctl", 0x41, "GetStatus", _CTL),
    Kind("ctl", 0x42, "WaitJob", _CTL),
    Kind("ctl", 0x43, "CancelJob", _CTL),
    Kind("ctl", 0x44, "KillWorker", _CTL),
    Kind("ctl", 0x45, "DrainWorker", _CTL),
    Kind("ctl", 0x46, "ListJobs", _CTL),
    Kind("ctl", 0x47, "ReadLogs", _CTL),
    Kind("ctl", 0x48, "ReadEvents", _CTL),
    Kind("ctl", 0x49, "ListCheckpoints", _CTL),
    Kind("ctl", 0x4A, "Result", _NONE, _CTL, _LARGE),
    Kind("ctl", 0x4C, "ResumeJob", _CTL),
    Kind("ctl", 0x4D, "PutPackage", _CTL, _NONE, _SMALL),
    Kind("ctl", 0x4E, "GetFigures", _CTL),
    Kind("ctl", 0x4F, "GetMetrics", _CTL),
    Kind("ctl", 0x50, "CreateToken", _CTL),
    Kind("ctl", 0x51, "ListTokens", _CTL),
    Kind("ctl", 0x52, "RevokeToken", _CTL),
    Kind("ctl", 0x53, "ListCredentials", _CTL),
    Kind("ctl", 0x54, "RevokeCredential", _CTL),
    Kind("ctl", 0x55, "Examine", _CTL),
    Kind("ctl", 0x56, "ShowJob", _CTL),
    Kind("ctl", 0x57, "Delete", _CTL),
    Kind("ctl", 0x58, "ReadAudit", _CTL),
    Kind("ctl", 0x59, "ShowAuthority", _CTL),
    Kind("ctl", 0x5B, "Profile", _CTL),
    Kind("ctl", 0x5C, "BeginSweep", _CTL),
    Kind("ctl", 0x5D, "ShowSweep", _CTL),
    Kind("ctl", 0x5E, "CancelSweep", _CTL),
    Kind("ctl", 0x5F, "OpenWeb", _CTL),
    Kind("ctl", 0x60, "AnnotateJob", _CTL),
    Kind("ctl", 0x61, "CompareJobs", _CTL),
    Kind("ctl", 0x6F, "ListSweeps", _CTL),
    # Registered models: dtdctl, the coordinator, and the workers that keep copies
    Kind("models", 0x62, "RegisterModel", _CTL),
    Kind("models", 0x63, "ListModels", _CTL),
    Kind("models", 0x64, "AliasModel", _CTL),
    Kind("models", 0x65, "DescribeModel", _CTL),
    Kind("models", 0x66, "DeleteModel", _CTL),
    Kind("models", 0x67, "PinModel", _NONE, _WORKER),
    Kind("models", 0x68, "ModelPinned", _WORKER),
    Kind("models", 0x69, "UnpinModel", _NONE, _WORKER),
    Kind("models", 0x6A, "ModelsHeld", _WORKER),
    Kind("models", 0x6B, "CopyModel", _CTL),
)

BY_NUMBER: Final[Mapping[int, Kind]] = {kind.number: kind for kind in KINDS}
BY_NAME: Final[Mapping[str, Kind]] = {kind.name: kind for kind in KINDS}

BESIDE: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *("MAX_BRANCHES", "MAX_HELD", "MAX_MEMORY_PARTS", "MAX_WORLD"),
            *("Branch", "Held", "Member", "MemoryPart"),
        ),
        "control",
    ),
    **dict.fromkeys(("BlobInfo", "MAX_LENT", "Phase", "ShmRegion"), "data"),
    **dict.fromkeys(("DataSource", "MAX_PART_HOLDERS", "PartHolder"), "requests"),
    **dict.fromkeys(("MAX_MODEL_FILES", "ModelFile", "ModelSource"), "models"),
}
"""Modules of names that are not messages but belong to them: records, limits, enumerations."""


def opener_numbers(role: Role) -> frozenset[int]:
    """Numbers of the messages that an opening side of this role may send on an open connection."""
    return frozenset(kind.number for kind in KINDS if role in kind.opener)


def acceptor_numbers(role: Role) -> frozenset[int]:
    """Numbers of the messages that the accepting side may send on an open connection."""
    return frozenset(kind.number for kind in KINDS if role in kind.acceptor)
