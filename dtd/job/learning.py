"""The tables of a job file for optimizer, schedule and training; the direction of a metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dtd.rules import setting


def lower_is_better(metric: str, mode: str) -> bool:
    """Whether the checkpoint with the smallest value is the best.

    Args:
        metric: its name.
        mode: "min" or "max"; empty: lower is better if the name contains "loss".
    """
    return mode == "min" if mode else "loss" in metric


# ---
# The tables of a job file that decide what is learned: optimizer, schedule, one worker's work.
#
# Each field with its type, default, range and meaning, as in `dtd.job.tables`, which has the
# others.


OptimizerName = Literal["sgd", "adam", "adamw"]
ScheduleName = Literal["constant", "step", "cosine"]
Precision = Literal["float32", "bfloat16", "float16"]


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
