"""The tables of a job file: each field with its type, default, range and meaning.

The parser checks against these rules and `docs/job-file.md` is generated from them, so a new field
is added to its table and nowhere else.  `dtd.job.strategy_table` has the strategy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from dtd.job.strategy_table import StrategyTable
from dtd.rules import rule, setting
from dtd.text.names import NAME, NAME_WORDS, REFERENCE
from dtd.text.shown import INTEGER_LIMIT

BUILT_IN_TASKS: Final = ("digits", "mnist", "cifar10", "chargpt", "synthetic")

OptimizerName = Literal["sgd", "adam", "adamw"]
ScheduleName = Literal["constant", "step", "cosine"]
Precision = Literal["float32", "bfloat16", "float16"]

MOST_WORKERS: Final = 64
RANGE: Final = r"[1-9]\d?-[1-9]\d?"
RANGE_WORDS: Final = f'an integer from 0 to {MOST_WORKERS}, or a range such as "2-6"'

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
    requirements: str = setting(
        "",
        "A requirements file or a pyproject.toml, beside the job file: workers install what it"
        " names, and they lack, before they import the task; empty = nothing.",
        pattern=r"|.*\.(txt|lock|in|toml)",
        wording='the path of a file such as "requirements.lock" or "pyproject.toml", or empty',
    )
    sandbox: Literal["normal", "strict"] = setting(
        "normal",
        "`strict`: only workers with the setting of the same name take part, where the job's"
        " code reaches no network but the cluster's and writes nothing but its worker's own.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerTable:
    """The update of weights by averaged gradients. A task with `build_optimizer` overrides it."""

    name: OptimizerName = setting("sgd", "The optimizer.")
    lr: float = setting(0.1, "Learning rate after warm-up, before the schedule.", minimum=0)
    momentum: float = setting(0.0, "Momentum.", minimum=0, below=1, only_for=("sgd",))
    nesterov: bool = setting(
        False, "Nesterov's momentum; needs `momentum` above 0.", only_for=("sgd",)
    )
    weight_decay: float = setting(
        0.0, "L2 penalty (sgd, adam) or decoupled weight decay (adamw).", minimum=0
    )
    beta1: float = setting(
        0.9, "Decay of the gradient's running mean.", minimum=0, below=1, only_for=("adam", "adamw")
    )
    beta2: float = setting(
        0.999,
        "Decay of the squared gradient's running mean.",
        minimum=0,
        below=1,
        only_for=("adam", "adamw"),
    )
    eps: float = setting(
        1e-8, "Added to the divisor to avoid division by zero.", above=0, only_for=("adam", "adamw")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTable:
    """The schedule of the learning rate; a task with `build_schedule` overrides it."""

    name: ScheduleName = setting(
        "constant", "`step` drops it by `gamma` at intervals, `cosine` lets it fall to `min_lr`."
    )
    warmup_steps: int = setting(
        0, "Steps over which the rate rises linearly from near 0.", minimum=0
    )
    step_every: int = setting(
        0, "Steps between two drops; required with `step`.", minimum=0, only_for=("step",)
    )
    gamma: float = setting(0.1, "Factor of one drop.", above=0, maximum=1, only_for=("step",))
    min_lr: float = setting(
        0.0,
        "The rate does not fall below this; at most `lr`.",
        minimum=0,
        only_for=("step", "cosine"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTable:
    """The computation of one worker's share of a step."""

    precision: Precision = setting("float32", "Type of forward and backward; weights stay float32.")
    grad_accumulation: int = setting(
        1,
        "Pieces in which a worker computes its share, to save memory; at most `global_batch_size`.",
        minimum=1,
        maximum=65536,
    )
    clip_norm: float = setting(
        0.0, "Largest norm of the averaged gradient; 0 = no clipping.", minimum=0
    )
    ema_decay: float = setting(
        0.0,
        "Decay of each weight's moving average per step, such as 0.999; the averages are "
        "evaluated, and saved beside the weights. 0 = no averages.",
        minimum=0,
        below=1,
    )
    eval_every: int = setting(
        0, "Steps between evaluations; 0 = at the end of every epoch.", minimum=0
    )
    eval_batch_size: int = setting(
        256, "Rows of one evaluation batch on one worker.", minimum=1, maximum=2**24
    )
    early_stop_metric: str = setting(
        "",
        "Metric of the evaluation that ends the job once it has not improved for"
        " `early_stop_patience` evaluations; empty = none.",
        pattern=r"(\S.{0,63})?",
        wording='the name of a metric, such as "accuracy" or "loss", or empty',
    )
    early_stop_patience: int = setting(
        5, "Evaluations without an improvement after which the job ends.", minimum=1, maximum=10**6
    )
    early_stop_mode: Literal["min", "max"] = setting(
        "min", "Whether a smaller or a greater `early_stop_metric` is better."
    )
    sanity_batches: int = setting(
        2,
        "Evaluation batches that are tried on every worker before training, so that a mistake "
        "in `metrics` or in a metric's name is found early; 0 = none.",
        minimum=0,
        maximum=65536,
    )
    digest_every: int = setting(
        25,
        "Steps between comparisons of all workers' states, which also happen at checkpoints and"
        " whenever workers come or go; 0 = only then.",
        minimum=0,
    )
    max_skipped_steps: int = setting(
        50,
        "The job fails after this many consecutive steps whose gradients are not finite; 0 = "
        "no limit.",
        minimum=0,
    )
    threads: int = setting(
        1,
        "CPU threads of each worker; the same on all workers, because it affects rounding.",
        minimum=1,
        maximum=1024,
    )
    activation_checkpointing: bool = setting(
        False, "Recompute activations in backward: slower, less memory."
    )
    loader_workers: int = setting(
        0,
        "Processes that load data per worker. 0 = none: rows that may draw random numbers are"
        " read in the training thread, others in a thread that reads ahead.",
        minimum=0,
        maximum=64,
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
    lossless: Literal["auto", "on", "off"] = setting(
        "auto",
        "Whether floats travel entropy-coded, which changes no bit of a result: `auto` where the"
        " network is slower than the coder and trial steps are shorter; `on` always; `off` never.",
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
    """How many workers the job takes, its priority among jobs, and how long it waits."""

    min_workers: int = setting(
        1, "The job waits while fewer workers are ready.", minimum=1, maximum=1024
    )
    max_workers: int = setting(
        64, "Workers beyond this number stay idle; at least `min_workers`.", minimum=1, maximum=1024
    )
    workers: int | str = setting(
        0,
        "How many workers the job takes, from `min_workers` to `max_workers`: such jobs run"
        " beside each other as long as there are workers for them. With a range the job begins"
        " with the least, takes idle workers up to the most, and gives those beyond its least to"
        " jobs that wait, or have fewer, at step boundaries. 0 = all, and no other job runs"
        " meanwhile.",
        minimum=0,
        maximum=MOST_WORKERS,
        pattern=RANGE,
        wording=RANGE_WORDS,
    )
    priority: int = setting(
        0,
        "Jobs with a greater number leave the queue earlier, and come first where jobs share"
        " workers (`workers`); no job is taken below its least for another one.",
        minimum=-100,
        maximum=100,
    )
    by_hand: bool = setting(
        False,
        "Only processes that were started for this job take part, as scripts with `dtd.join` are;"
        " the workers of hosts are left to other jobs, which run meanwhile. Not with `workers`.",
    )
    shares: Literal["equal", "measured"] | dict[str, float] = setting(
        "equal",
        "How the rows of a step are divided among workers. `measured`: in proportion to their"
        " speed, reconsidered every 8 steps, so that a slow worker does not hold up the others;"
        " results then depend on the machines' speed as they do on the number of workers (by"
        " rounding, dropout, BatchNorm). A table gives fixed weights by the name of a worker, or"
        " of the host with which it begins; workers that are not named have 1.",
        above=0,
        maximum=1e6,
        pattern=NAME,
        wording='"equal", "measured", or a table of numbers above 0, such as { nas = 1, desk = 3 }',
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
        " first evaluation, with a compiler or on a GPU a batch of another shape. An import that"
        " computes, if only 2 % of the time, has `busy_timeout_s`.",
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


def least_and_most(workers: int | str) -> tuple[int, int]:
    """The ends of `elastic.workers`; (0, 0) for a job that takes all."""
    least, _, most = str(workers).partition("-")
    return int(least), int(most or least)


def lower_is_better(metric: str, mode: str) -> bool:
    """Whether the checkpoint with the smallest value is the best.

    Without a mode ("min" or "max") it is if the metric's name contains "loss".
    """
    return mode == "min" if mode else "loss" in metric


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A whole job file, valid as a whole.

    `task` holds the task's own keyword arguments, `data` the paths of the job's data by name.
    """

    job: JobTable
    task: dict[str, Any]
    optimizer: OptimizerTable
    schedule: ScheduleTable
    train: TrainTable
    sync: SyncTable
    strategy: StrategyTable
    elastic: ElasticTable
    checkpoint: CheckpointTable
    data: dict[str, str] = field(default_factory=dict)
