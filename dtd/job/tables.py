"""The tables of a job file: each field with its type, default, range and meaning.

The parser checks against these rules and `docs/job-file.md` is generated from them, so a new field
is added to its table and nowhere else.  Here: what is trained, by how many workers, and where its
state goes; `dtd.job.strategy_table` has the strategy, `dtd.job.learning` the tables that decide
what is learned.  No behaviour in any of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from dtd.job.learning import OptimizerTable, ScheduleTable, TrainTable
from dtd.job.strategy_table import StrategyTable
from dtd.names import NAME, NAME_WORDS, REFERENCE
from dtd.rules import rule, setting
from dtd.shown import INTEGER_LIMIT

BUILT_IN_TASKS: Final = ("digits", "mnist", "cifar10", "chargpt", "synthetic")

_REFERENCE: Final = "|".join((*BUILT_IN_TASKS, REFERENCE))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTable:
    """The task, and for how long it trains. Exactly one of `epochs` and `steps` is given."""

    name: str = field(
        metadata=rule(
            "Name of the job in listings; ids and directories are derived from it.",
            pattern=NAME,
            wording=NAME_WORDS,
        )
    )
    task: str = field(
        metadata=rule(
            "The task: a built-in one, or the module and attribute that workers import.",
            pattern=_REFERENCE,
            wording=", ".join(f'"{task}"' for task in BUILT_IN_TASKS)
            + ' or "package.module:attribute"',
        )
    )
    epochs: int | None = setting(None, "Passes over the training data.", minimum=1, maximum=10**6)
    steps: int | None = setting(
        None, "Optimizer steps, instead of epochs.", minimum=1, maximum=10**12
    )
    seed: int = setting(
        0,
        "Determines initial weights, order of rows, augmentation and dropout.",
        minimum=0,
        maximum=INTEGER_LIMIT,
    )
    global_batch_size: int = field(
        metadata=rule(
            "Rows of one optimizer step over all workers; it does not change when workers come"
            " and go.",
            minimum=1,
            maximum=2**24,
        )
    )
    sandbox: Literal["normal", "strict"] = setting(
        "normal",
        "`strict`: only workers with the setting of the same name take part, where the job's"
        " code reaches no network but the cluster's and writes nothing but its worker's own.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTable:
    """The exchange of gradients around the ring."""

    bucket_mib: float = setting(
        1.0, "Gradients flattened together for one all-reduce.", above=0, maximum=1024
    )
    first_bucket_mib: float = setting(
        1.0, "Size of the first bucket; a small one starts early.", above=0, maximum=1024
    )
    chunk_kib: int = setting(
        1024, "Piece of a bucket in one frame, in KiB.", minimum=16, maximum=16 * 1024
    )
    transport: Literal["ring", "gloo", "nccl"] = setting(
        "ring",
        "How gradients travel: around dtd's own ring, or through a process group of torch, "
        "`gloo` or (workers on GPUs only) `nccl`, which is created for each generation. "
        "Groups open their own ports, and their traffic is neither encrypted nor authenticated.",
    )
    encryption: Literal["none", "tls"] = setting(
        "none",
        "`tls` encrypts what workers send one another, and what `dtdctl fetch` takes from them;"
        " it needs a cluster with credentials.",
    )
    plain_gradients: bool = setting(
        False,
        "With `tls` and a process group: let gradients travel unencrypted. State,"
        " votes and running buffers stay encrypted.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticTable:
    """The number of workers that the job takes, and how long it waits for them."""

    min_workers: int = setting(
        1, "The job waits while fewer workers are ready.", minimum=1, maximum=1024
    )
    max_workers: int = setting(
        64, "Workers beyond this number stay idle; at least `min_workers`.", minimum=1, maximum=1024
    )
    workers: int = setting(
        0,
        "How many workers the job takes, from `min_workers` to `max_workers`: such jobs run"
        " beside each other as long as there are workers for them. 0 = all, and no other job"
        " runs meanwhile.",
        minimum=0,
        maximum=64,
    )
    settle_s: float = setting(
        2.0,
        "How long the first generation waits for more workers once `min_workers` are ready.",
        minimum=0,
        maximum=3600,
    )
    warmup_timeout_s: float = setting(
        120.0,
        "How long a worker may take to import the task and build model and data, and how long"
        " nothing may move in whatever it then does for the first time: its first step, its"
        " first evaluation, with a compiler or on a GPU a batch of another shape.",
        above=0,
        maximum=86400,
    )
    stall_timeout_s: float = setting(
        5.0,
        "How long nothing may move in the job's own code (no processor time, nothing read,"
        " nothing compiled); ten times the longest such silence so far, if that is longer."
        " Then the worker starts afresh. Whatever is done for the first time has"
        " `warmup_timeout_s`.",
        above=0,
        maximum=86400,
    )
    busy_timeout_s: float = setting(
        1800.0,
        "How long a pause in training may be while something moves in it: longer than the"
        " longest step of a worker. A loop that never ends is found by this.",
        above=0,
        maximum=604800,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTable:
    """When the state is saved, where, and how much of it is kept."""

    every_steps: int = setting(
        0,
        "Steps between checkpoints; 0 = at the end of every epoch. The final step is always saved.",
        minimum=0,
    )
    directory: str = setting(
        "",
        "Where checkpoints go; empty = the worker's own state directory.",
        pattern=r"|/.*",
        wording="an absolute path, because workers share no working directory, or empty",
    )
    keep: int = setting(3, "How many of the newest checkpoints are kept.", minimum=1, maximum=10**6)
    copies: int = setting(
        1,
        "How many workers write each checkpoint, on different hosts where possible; more than "
        "1 protects against the loss of a disk.",
        minimum=1,
        maximum=1024,
    )
    best_metric: str = setting(
        "",
        "Metric of the evaluation by which the best checkpoint is kept as well; empty = none.",
        pattern=rf"|{NAME}",
        wording='the name of a metric, such as "accuracy" or "loss", or empty',
    )
    best_mode: Literal["", "max", "min"] = setting(
        "",
        "Whether a greater or a smaller `best_metric` is better; empty = smaller if its name"
        ' contains "loss", else greater.',
    )
    keep_days: float = setting(
        0.0,
        "Checkpoints older than this are removed regardless of `keep`, except the newest and "
        "the best; 0 = no limit.",
        minimum=0,
        maximum=36500,
    )
    keep_gib: float = setting(
        0.0,
        "The oldest are removed while this job's checkpoints take more room than this on a "
        "worker, except the newest and the best; 0 = no limit.",
        minimum=0,
        maximum=2**20,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A whole job file, valid as a whole; `task` holds the task's own keyword arguments."""

    job: JobTable
    task: dict[str, Any]
    optimizer: OptimizerTable
    schedule: ScheduleTable
    train: TrainTable
    sync: SyncTable
    strategy: StrategyTable
    elastic: ElasticTable
    checkpoint: CheckpointTable
