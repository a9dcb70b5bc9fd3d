"""A job's settings that the coordinator needs, read once from the specification; its identity.

The coordinator trains nothing, so it checks no optimizer and no task: a job in its store may be of
another release, whose specification this one would refuse, and must be listed and ended all the
same.  A setting that is missing or of another type has its default.

Ids such as `digits-3` are counted by each coordinator's store, so two stores give the same ones.
An identity also names the store, the time, and a hash of the settings that make a state what it
is.  Checkpoints carry it and lie in a directory of its own; workers and coordinator compare it
before they take anything of a job for theirs.  The rest of dtd handles it as text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dtd.job.strategy_table import StrategyTable
from dtd.job.tables import RANGE, CheckpointTable, ElasticTable, least_and_most
from dtd.rules import fault, fields_of
from dtd.text.names import LAUNCHED

_HASH_CHARACTERS: Final = 16
_TAG_CHARACTERS: Final = 10
_ELASTIC: Final = ElasticTable()
_CHECKPOINT: Final = CheckpointTable()
_STRATEGY: Final = StrategyTable()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """The settings of one job that the coordinator decides by, named as in the job file.

    Attributes:
        name, task, global_batch_size: "" or 0 where the job does not say.
        epochs: None for a job that counts in steps.
        sandbox: workers whose own is laxer than "strict" refuse such a job.
        least, most: the ends of `elastic.workers`; 0: the job takes all workers.
        copies: 0 for a launched script, which saves its state itself.
        strategy: the table, as far as it is known here.
    """

    name: str = ""
    task: str = ""
    epochs: int | None = None
    sandbox: str = "normal"
    global_batch_size: int = 0
    min_workers: int = _ELASTIC.min_workers
    max_workers: int = _ELASTIC.max_workers
    least: int = 0
    most: int = 0
    priority: int = _ELASTIC.priority
    by_hand: bool = _ELASTIC.by_hand
    settle_s: float = _ELASTIC.settle_s
    warmup_timeout_s: float = _ELASTIC.warmup_timeout_s
    stall_timeout_s: float = _ELASTIC.stall_timeout_s
    busy_timeout_s: float = _ELASTIC.busy_timeout_s
    copies: int = _CHECKPOINT.copies
    strategy: StrategyTable = _STRATEGY

    @property
    def launched(self) -> bool:
        """Whether workers start a script of which they know no step and no state."""
        return self.task.endswith(LAUNCHED)

    @property
    def sharded(self) -> bool:
        return self.strategy.sharded

    @property
    def has_servers(self) -> bool:
        return self.strategy.has_servers

    @property
    def mirrors(self) -> int:
        return self.strategy.mirrors

    @property
    def longest_limit_s(self) -> float:
        """The longest time that the training thread may take over anything."""
        return max(self.warmup_timeout_s, self.stall_timeout_s, self.busy_timeout_s)


_PLACES: Final[Mapping[str, tuple[str, type]]] = {
    "name": ("job", str),
    "task": ("job", str),
    "epochs": ("job", int),
    "sandbox": ("job", str),
    "global_batch_size": ("job", int),
    "min_workers": ("elastic", int),
    "max_workers": ("elastic", int),
    "priority": ("elastic", int),
    "by_hand": ("elastic", bool),
    "settle_s": ("elastic", float),
    "warmup_timeout_s": ("elastic", float),
    "stall_timeout_s": ("elastic", float),
    "busy_timeout_s": ("elastic", float),
    "copies": ("checkpoint", int),
}
"""In which table each setting stands, and its type."""


def terms_of(spec: Mapping[str, Any]) -> JobTerms:
    """The terms of a job, given its specification as a map of tables; raises nothing."""
    found: dict[str, Any] = {}
    for setting, (table, kind) in _PLACES.items():
        values = spec.get(table)
        value = values.get(setting) if isinstance(values, Mapping) else None
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is kind:
            found[setting] = value
    if str(found.get("task", "")).endswith(LAUNCHED):
        found["copies"] = 0
    found["least"], found["most"] = _workers(spec.get("elastic"))
    return JobTerms(**found, strategy=_strategy(spec.get("strategy")))


def _workers(elastic: object) -> tuple[int, int]:
    value = elastic.get("workers") if isinstance(elastic, Mapping) else None
    if type(value) is int or (isinstance(value, str) and re.fullmatch(RANGE, value)):
        return least_and_most(value)
    return 0, 0


def _strategy(given: object) -> StrategyTable:
    """Return the strategy's table with those values that would be valid here."""
    values = given if isinstance(given, Mapping) else {}
    return StrategyTable(
        **{
            name: values[name]
            for name, info in fields_of(StrategyTable).items()
            if name in values and not fault(info.hint, info.rule, values[name])
        }
    )


def spec_hash(spec: Mapping[str, Any]) -> str:
    """Hash of the settings that no continuation of a job may change.

    The task with its arguments, the seed, the batch and the optimizer: with others the same step
    is another state.  How long a job trains, on how many workers, what it saves and how it learns
    from here on may change.  Named one by one, so that a setting which a later dtd adds does not
    make a stranger of a job.
    """
    job = spec.get("job", {})
    fixed = {name: job.get(name) for name in ("task", "seed", "global_batch_size")}
    fixed["arguments"] = spec.get("task", {})
    fixed["optimizer"] = spec.get("optimizer", {}).get("name")
    return _hash(json.dumps(fixed, sort_keys=True, default=str), _HASH_CHARACTERS)


def identity_of(store_id: str, submitted_s: int, job_id: str, spec: Mapping[str, Any]) -> str:
    """A job's identity: STORE.TIME.JOB.HASH.

    The time is its submission's: a store that was restored from a backup may give an id again.
    """
    return f"{store_id}.{submitted_s}.{job_id}.{spec_hash(spec)}"


def folder_of(job_id: str, identity: str) -> str:
    """Name of the directory of a job's checkpoints; without an identity, its id."""
    return f"{job_id}.{_hash(identity, _TAG_CHARACTERS)}" if identity else job_id


def _hash(text: str, characters: int) -> str:
    return hashlib.blake2b(text.encode()).hexdigest()[:characters]
