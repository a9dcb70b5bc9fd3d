"""Every exception dtd raises on purpose, in one tree.

    DtdError
    ├── UsageError                 the caller typed something wrong                exit 2
    │   └── JobSpecError           the job file is invalid; carries every problem  exit 2
    ├── ConfigError                a daemon's flag, variable or file is invalid    exit 78
    │   └── StoreDamaged           the coordinator's store cannot be read whole    exit 78
    ├── ProtocolError              the remote side broke protocol.md               connection ends
    │   └── UnreadableWord         a rank's word in an exchange makes no sense     step is redone
    ├── LocalProtocolError         this side was about to break it: a bug in dtd
    ├── RequestRefused             the coordinator understood and refused          exit 1
    ├── CoordinatorUnreachable     nothing answers at the address                  exit 3
    ├── JobFailed                  the job ended without success                   exit 4
    ├── TaskError                  the task, its data or its packages are at fault fails the job
    ├── LoaderLost                 a loader process has ended                      others load again
    ├── CheckpointError            a checkpoint is missing or does not verify      it is skipped
    │   ├── HolderUnreachable      nothing answers at its reported address         retried
    │   └── PartsDiffer            two parts of a checkpoint contradict each other others are tried
    ├── ProfileError               a worker's part of a profile cannot be used     others are merged
    ├── DivergenceError            replicas that must be equal are not             fails the job
    ├── ImpossibleTransition       a state machine was given an event too early    a bug in dtd
    ├── RingBroken                 a generation ended under a running step         step is redone
    ├── HistoryDamaged             the coordinator's store of figures is damaged   it is set aside
    └── ShardsMissing              no member holds some part of a sharded state    generation ends

Each class says whose fault it is (`blame`), what `dtdctl` and the daemons exit with (`exit_code`),
and each instance what to do next (`remedy`, may be empty).  Codes on the wire are `ErrorCode`;
`protocol.md` section "Errors" is compared with it by a test.
"""

from __future__ import annotations

import enum
from typing import ClassVar


class ErrorCode(enum.IntEnum):
    """Codes of an ERROR frame (protocol.md, "Errors")."""

    BAD_MAGIC = 1
    BAD_VERSION = 2
    BAD_FLAGS = 3
    HEADER_TOO_LARGE = 4
    PAYLOAD_TOO_LARGE = 5
    BAD_TAG = 6
    BAD_HEADER = 7
    UNKNOWN_TYPE = 8
    BAD_FIELD = 9
    WRONG_STATE = 10
    TRUNCATED = 11
    BAD_PAYLOAD = 12
    STALE_GENERATION = 13
    WRONG_SOURCE = 14
    UNEXPECTED_CHUNK = 15
    TIMEOUT = 16
    REFUSED = 17
    INTERNAL = 18
    RECALLED = 19


class DtdError(Exception):
    """Root of the tree.

    Args:
        message: one sentence that names the field, file, host or frame at fault.
        remedy: what to type or change next; empty when there is nothing to do.
    """

    blame: ClassVar[str] = "dtd"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class UsageError(DtdError):
    """The caller typed something that cannot work."""

    blame = "caller"
    exit_code = 2


class JobSpecError(UsageError):
    """A job file is invalid; `problems` lists everything wrong with it, in file order."""

    blame = "job file"

    def __init__(self, source: str, problems: tuple[str, ...]) -> None:
        noun = "problem" if len(problems) == 1 else "problems"
        super().__init__(
            f"{source}: {len(problems)} {noun}\n" + "\n".join(f"  {p}" for p in problems)
        )
        self.source = source
        self.problems = problems


class ConfigError(DtdError):
    """A daemon was configured wrongly; starting it again would not help (EX_CONFIG)."""

    blame = "administrator"
    exit_code = 78


class StoreDamaged(ConfigError):
    """The coordinator's store cannot be read whole: its disk's fault, or of what changed its files.

    The operator decides what becomes of it.
    """


class ProtocolError(DtdError):
    """The remote side sent something that protocol.md forbids; its connection is closed."""

    blame = "remote"

    def __init__(self, code: ErrorCode, message: str, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.code = code


class LocalProtocolError(DtdError):
    """This side tried to send something that protocol.md forbids: a bug in dtd."""


class RequestRefused(DtdError):
    """The coordinator understood the request and will not do it."""

    blame = "caller"


class CoordinatorUnreachable(DtdError):
    """Nothing answers at the coordinator's address."""

    blame = "network"
    exit_code = 3


class JobFailed(DtdError):
    """The job ended failed or cancelled."""

    blame = "job"
    exit_code = 4


class TaskError(DtdError):
    """The user's task, its data or a package it needs is at fault; the job fails with this."""

    blame = "task"


class CodeError(TaskError):
    """The user's code does what it must not, whatever the host: no other worker is tried."""


class LoopLeft(CodeError):
    """A user's own loop was left before its last step."""


class ScriptFailed(TaskError):
    """A script that runs as a process of its own has ended with an error.

    `output` is the end of what it has printed.
    """

    def __init__(self, message: str, *, output: str) -> None:
        super().__init__(message)
        self.output = output


class LoaderLost(DtdError):
    """A loader process has ended under a batch; others may load it."""

    blame = "host"


class CheckpointError(DtdError):
    """A checkpoint is missing, torn or does not verify."""

    blame = "disk"


class HolderUnreachable(CheckpointError):
    """The worker that holds a checkpoint does not answer, or left while it was fetched."""

    blame = "network or peer"


class PartsDiffer(CheckpointError):
    """Two parts of one checkpoint contradict each other; `holders`: the workers that wrote them."""

    def __init__(self, message: str, *, holders: tuple[str, str], remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.holders = holders


class ProfileError(DtdError):
    """A worker's part of a profile is no recording of a worker."""

    blame = "peer"


class DivergenceError(DtdError):
    """Replicas that are equal by construction are not equal.

    `dissenters` are the ranks that differ from the most common state; `majority` says whether more
    than half of those who vote share that one.  States differ after `step` committed steps, and
    first in `entry`, if that is known.
    """

    blame = "hardware or task"

    def __init__(
        self,
        message: str,
        *,
        dissenters: tuple[int, ...],
        majority: bool,
        step: int = 0,
        entry: str = "",
    ) -> None:
        super().__init__(message)
        self.dissenters = dissenters
        self.majority = majority
        self.step = step
        self.entry = entry


class ImpossibleTransition(DtdError):
    """An event that cannot happen in the state that something is in: a bug in dtd."""


class UnreadableWord(ProtocolError):
    """A rank's data in a small gather cannot be read; `rank`: that rank."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(ErrorCode.BAD_PAYLOAD, f"rank {rank}: {message}")
        self.rank = rank


class RingBroken(DtdError):
    """The generation ended while a step was under way; nothing of that step was applied.

    `suspect` is the worker that the ring lost, `evidence` how ("ended", "reset", "silent",
    "unreachable" or "corrupt"); both are empty when the coordinator ended the generation.
    """

    blame = "network or peer"

    def __init__(self, message: str, *, suspect: str = "", evidence: str = "") -> None:
        super().__init__(message)
        self.suspect = suspect
        self.evidence = evidence


class HistoryDamaged(DtdError):
    """The coordinator's store of figures cannot be used; it is quarantined, training continues."""

    blame = "disk"


class ShardsMissing(DtdError):
    """No member of a generation holds a part of the sharded state that one of them needs."""

    blame = "peer"
