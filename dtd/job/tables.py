"""Every field of a job file: its type, default, range and meaning, in one place.

The parser checks against these rules and `docs/job-file.md` is generated from them, so a new field
is added here and nowhere else.  This file holds no behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from dtd.rules import rule
from dtd.shown import INTEGER_LIMIT

BUILT_IN_TASKS: Final = ("digits", "mnist", "cifar10", "chargpt", "synthetic")

OptimizerName = Literal["sgd", "adam", "adamw"]
ScheduleName = Literal["constant", "step", "cosine"]
Precision = Literal["float32", "bfloat16", "float16"]

_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_IDENTIFIER: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_DOTTED: Final = rf"{_IDENTIFIER}(\.{_IDENTIFIER})*"
_REFERENCE: Final = "|".join((*BUILT_IN_TASKS, rf"{_DOTTED}:{_DOTTED}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTable:
    """What is trained, and for how long. Exactly one of `epochs` and `steps` is given."""

    name: str = field(
        metadata=rule(
            "Name of the job in listings; ids and directories are derived from it.",
            pattern=_NAME,
            wording="1 to 64 letters, digits, dots, dashes or underscores, the first one a letter"
            " or digit",
        )
    )
    task: str = field(
        metadata=rule(
            "The task: a built-in one, or where workers import one from.",
            pattern=_REFERENCE,
            wording=", ".join(f'"{task}"' for task in BUILT_IN_TASKS)
            + ' or "package.module:attribute"',
        )
    )
    epochs: int | None = field(
        default=None,
        metadata=rule("Passes over the training data.", minimum=1, maximum=10**6),
    )
    steps: int | None = field(
        default=None,
        metadata=rule("Optimizer steps, instead of epochs.", minimum=1, maximum=10**12),
    )
    seed: int = field(
        default=0,
        metadata=rule(
            "Decides initial weights, order of rows, augmentation and dropout.",
            minimum=0,
            maximum=INTEGER_LIMIT,
        ),
    )
    global_batch_size: int = field(
        metadata=rule(
            "Rows of one optimizer step over all workers; it does not change when workers come"
            " and go.",
            minimum=1,
            maximum=2**24,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerTable:
    """How averaged gradients change the weights. A task with `build_optimizer` overrides this."""

    name: OptimizerName = field(default="sgd", metadata=rule("The optimizer."))
    lr: float = field(
        default=0.1, metadata=rule("Learning rate after warm-up, before the schedule.", minimum=0)
    )
    momentum: float = field(
        default=0.0, metadata=rule("Momentum.", minimum=0, below=1, only_for=("sgd",))
    )
    nesterov: bool = field(
        default=False,
        metadata=rule("Nesterov's momentum; needs `momentum` above 0.", only_for=("sgd",)),
    )
    weight_decay: float = field(
        default=0.0,
        metadata=rule("L2 penalty (sgd, adam) or decoupled weight decay (adamw).", minimum=0),
    )
    beta1: float = field(
        default=0.9,
        metadata=rule(
            "Decay of the gradient's running mean.", minimum=0, below=1, only_for=("adam", "adamw")
        ),
    )
    beta2: float = field(
        default=0.999,
        metadata=rule(
            "Decay of the squared gradient's running mean.",
            minimum=0,
            below=1,
            only_for=("adam", "adamw"),
        ),
    )
    eps: float = field(
        default=1e-8,
        metadata=rule("Keeps the division finite.", above=0, only_for=("adam", "adamw")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTable:
    """How the learning rate changes from step to step."""

    name: ScheduleName = field(
        default="constant",
        metadata=rule(
            "`step` drops it by `gamma` at intervals, `cosine` lets it fall to `min_lr`."
        ),
    )
    warmup_steps: int = field(
        default=0,
        metadata=rule("Steps over which the rate rises linearly from near 0.", minimum=0),
    )
    step_every: int = field(
        default=0,
        metadata=rule(
            "Steps between two drops; required with `step`.", minimum=0, only_for=("step",)
        ),
    )
    gamma: float = field(
        default=0.1,
        metadata=rule("Factor of one drop.", above=0, maximum=1, only_for=("step",)),
    )
    min_lr: float = field(
        default=0.0,
        metadata=rule(
            "The rate does not fall below this; at most `lr`.",
            minimum=0,
            only_for=("step", "cosine"),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTable:
    """How one worker computes its share of a step."""

    precision: Precision = field(
        default="float32",
        metadata=rule("Type of forward and backward; weights stay float32."),
    )
    grad_accumulation: int = field(
        default=1,
        metadata=rule(
            "Pieces in which a worker computes its share, to save memory; at most"
            " `global_batch_size`.",
            minimum=1,
            maximum=65536,
        ),
    )
    clip_norm: float = field(
        default=0.0,
        metadata=rule("Largest norm of the averaged gradient; 0 = no clipping.", minimum=0),
    )
    eval_every: int = field(
        default=0,
        metadata=rule("Steps between evaluations; 0 = at the end of every epoch.", minimum=0),
    )
    eval_batch_size: int = field(
        default=256,
        metadata=rule("Rows of one evaluation batch on one worker.", minimum=1, maximum=2**24),
    )
    digest_every: int = field(
        default=25,
        metadata=rule(
            "Steps between comparisons of all workers' states, which also happen at checkpoints and"
            " whenever workers come or go; 0 = only then.",
            minimum=0,
        ),
    )
    max_skipped_steps: int = field(
        default=50,
        metadata=rule(
            "So many steps in a row whose gradients are not finite fail the job; 0 = no limit.",
            minimum=0,
        ),
    )
    threads: int = field(
        default=1,
        metadata=rule(
            "CPU threads of each worker; the same everywhere, because it decides rounding.",
            minimum=1,
            maximum=1024,
        ),
    )
    activation_checkpointing: bool = field(
        default=False,
        metadata=rule("Recompute activations in backward: slower, less memory."),
    )
    loader_workers: int = field(
        default=0,
        metadata=rule(
            "Processes that load data per worker; 0 = one thread.", minimum=0, maximum=64
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTable:
    """How gradients travel around the ring."""

    bucket_mib: float = field(
        default=4.0,
        metadata=rule("Gradients flattened together for one all-reduce.", above=0, maximum=1024),
    )
    first_bucket_mib: float = field(
        default=1.0,
        metadata=rule("Size of the first bucket; small starts it early.", above=0, maximum=1024),
    )
    chunk_kib: int = field(
        default=1024,
        metadata=rule("Piece of a bucket in one frame, in KiB.", minimum=16, maximum=16 * 1024),
    )
    encryption: Literal["none", "tls"] = field(
        default="none",
        metadata=rule(
            "`tls` encrypts what workers send one another; it needs a cluster with credentials."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticTable:
    """How many workers the job takes, and how long it waits for them."""

    min_workers: int = field(
        default=1,
        metadata=rule("The job waits while there are fewer.", minimum=1, maximum=1024),
    )
    max_workers: int = field(
        default=64,
        metadata=rule(
            "More than these stay idle; at least `min_workers`.", minimum=1, maximum=1024
        ),
    )
    settle_s: float = field(
        default=2.0,
        metadata=rule(
            "How long the first generation waits for more workers once `min_workers` are here.",
            minimum=0,
            maximum=3600,
        ),
    )
    warmup_timeout_s: float = field(
        default=120.0,
        metadata=rule(
            "How long a worker may take to import the task and build model and data, and then to"
            " its first step.",
            above=0,
            maximum=86400,
        ),
    )
    stall_timeout_s: float = field(
        default=5.0,
        metadata=rule(
            "How long training may stand still in the job's own code; ten times the longest pause"
            " so far, if that is longer. Then the worker starts afresh.",
            above=0,
            maximum=86400,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTable:
    """When the state is saved, where, and how much of it is kept."""

    every_steps: int = field(
        default=0,
        metadata=rule(
            "Steps between checkpoints; 0 = at the end of every epoch. The final step is always"
            " saved.",
            minimum=0,
        ),
    )
    directory: str = field(
        default="",
        metadata=rule(
            "Where checkpoints go; empty = the worker's own state directory.",
            pattern=r"|/.*",
            wording="an absolute path, because workers share no working directory, or empty",
        ),
    )
    keep: int = field(
        default=3,
        metadata=rule("How many of the newest are kept.", minimum=1, maximum=10**6),
    )
    copies: int = field(
        default=1,
        metadata=rule(
            "How many workers write each checkpoint, on as many hosts as there are; more than 1"
            " guards local disks.",
            minimum=1,
            maximum=1024,
        ),
    )
    best_metric: str = field(
        default="",
        metadata=rule(
            "Metric of the evaluation by which the best checkpoint is kept as well; lower is"
            ' better if its name contains "loss", else higher; empty = none.',
            pattern=rf"|{_NAME}",
            wording='the name of a metric, such as "accuracy" or "loss", or empty',
        ),
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
    elastic: ElasticTable
    checkpoint: CheckpointTable
