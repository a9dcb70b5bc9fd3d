"""Registered models: requests of operators, and the copies that workers keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from dtd.wire.fields import (
    U16,
    U32,
    U64,
    Flag,
    Host,
    Hosts,
    Name,
    Names,
    Octets,
    Shards,
    Text,
    Words,
    list_of,
)
from dtd.wire.messages.registry import Message, message
from dtd.wire.messages.requests import MAX_PART_HOLDERS

MAX_MODEL_FILES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """One file of a version: its name, size and sha256 in hex."""

    name: Name
    size_bytes: U64
    sha256: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A connected worker from which a version's files can be had, and a ticket for that.

    `digest`: of the state, for a checkpoint; `part`: which shards of it are there, empty: all.
    """

    name: Name
    host: Host
    port: U16
    resource: Text
    digest: Name = ""
    part: Shards = ()
    ticket_expires_s: U64 = 0
    ticket_key: Octets = field(default=b"", repr=False)
    others: Hosts = ()


@message
class RegisterModel(Message):
    """Register a job's checkpoint as the next version of a model.

    `step` 0: the newest, or with `best` the best by that metric; `mode`: "min", "max", or empty as
    the job says.  `copies`: how many workers are to keep it.  `card`: text for its model card.
    """

    name: Name
    job: Name
    step: U64 = 0
    best: Name = ""
    mode: Name = ""
    copies: U16 = 2
    card: Text = ""


@message
class ListModels(Message):
    """Ask for all versions, those of a model, or one; with `tickets` also to fetch that one.

    `version`: a number, an alias, or empty; with `tickets` empty means the newest.
    """

    name: Name = ""
    version: Name = ""
    tickets: Flag = False


@message
class AliasModel(Message):
    """Have an alias of a model stand for a version; version 0 removes the alias."""

    name: Name
    alias: Name
    version: U32


@message
class DescribeModel(Message):
    """Replace the text of a version's card."""

    name: Name
    version: U32
    card: Text


@message
class CopyModel(Message):
    """Have the copies that a version lacks made now; version 0: those of the whole model."""

    name: Name
    version: U32 = 0


@message
class DeleteModel(Message):
    """Delete a version with all of its copies; version 0: the whole model."""

    name: Name
    version: U32 = 0


@message
class PinModel(Message):
    """Coordinator to worker: keep a copy of this version.

    `files`: what they must be; empty if no worker has a copy yet.  `encrypted`: fetch them over
    TLS.
    """

    version: Name
    files: Annotated[tuple[ModelFile, ...], list_of(ModelFile, MAX_MODEL_FILES)] = ()
    sources: Annotated[tuple[ModelSource, ...], list_of(ModelSource, MAX_PART_HOLDERS)] = ()
    encrypted: Flag = False


@message
class ModelPinned(Message):
    """The answer to PIN_MODEL; `reason` says why there is no copy."""

    version: Name
    files: Annotated[tuple[ModelFile, ...], list_of(ModelFile, MAX_MODEL_FILES)] = ()
    reason: Words = ""


@message
class UnpinModel(Message):
    """Coordinator to worker: delete your copy of this version; answered with MODELS_HELD."""

    version: Name


@message
class ModelsHeld(Message):
    """The versions of which a worker keeps copies: after REGISTERED, and after UNPIN_MODEL."""

    versions: Names = ()
