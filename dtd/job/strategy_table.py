"""The `[strategy]` table of a job file: how a step's rows become an update.

Each field with its type, default, range and meaning, as in `dtd.job.tables`, which has the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from dtd.rules import setting

LOCAL: Final = ("local_sgd", "diloco", "streaming_diloco")
"""Strategies with local steps."""
SPARSE: Final = ("top_k", "random_k")
"""Codecs that send a few gradients of many."""
SHARDED: Final = ("sharded",)
"""Strategies whose state is divided among the workers."""
SHARDED_STAGES: Final[tuple[int, ...]] = (1, 2, 3)
"""Values of `strategy.stage`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyTable:
    """The algorithm that turns a step's rows into an update."""

    name: Literal["replicated", "local_sgd", "diloco", "streaming_diloco", "sharded"] = setting(
        "replicated",
        "`replicated`: a step sums all gradients. `sharded`: the same, but each worker keeps"
        " only a part of the state (`stage`) and copies of others' parts (`mirrors`): for"
        " models that do not fit. `local_sgd`: workers take `inner_steps` steps"
        " each by itself, then average their weights. `diloco`: the same, but an outer"
        " optimizer (Nesterov's momentum) applies the mean change; for slow links."
        " `streaming_diloco`: a fragment of the model at a time, while the next steps are"
        " computed. The inner"
        " optimizer's state is each worker's own: it is in no checkpoint, and a worker that"
        " joins or loads one begins with none.",
    )
    codec: Literal[
        "none", "bfloat16", "float16", "int8", "powersgd", "top_k", "random_k", "sign"
    ] = setting(
        "none",
        "Form in which float32 gradients travel; `none` = as they are; other types always"
        " travel so. `bfloat16` and `float16` halve the bytes: every hop rounds once, to 8 or"
        " 11 significant bits; the range of `float16` ends at 65504, beyond it the step is"
        " skipped. The others send what they lose in later steps, for which a worker keeps as"
        " much memory as gradients take, twice or (`momentum`) four times. `int8`: a quarter"
        " of the bytes, blocks of 256 with a scale each. `powersgd`: matrices as two factors"
        " of `rank` columns. `top_k`: the largest elements of each tensor, `random_k`: random"
        " ones (Deep Gradient Compression). `sign`: one bit an element and a scale a tensor."
        " With these three, tensors of one dimension or fewer than 1024 elements travel as"
        " they are, and of the bytes of `sign` and `top_k` each worker receives those of all"
        " others.",
    )
    start_step: int = setting(
        0,
        "Steps at the beginning of the job in which nothing is compressed.",
        minimum=0,
        only_for=("powersgd",),
    )
    error_feedback: bool = setting(
        True,
        "The part of gradients that was not sent is added to the next ones. It takes twice the"
        " gradients' memory, belongs to the worker alone and is in no checkpoint: it begins at"
        " zero in a worker that joins, and when a job is resumed.",
        only_for=("powersgd",),
    )
    rank: int = setting(
        4,
        "Columns of a factor; more send more, and lose less.",
        minimum=1,
        maximum=64,
        only_for=("powersgd",),
    )
    warm_start: bool = setting(
        True,
        "Factors begin with those of the step before, and anew with each generation.",
        only_for=("powersgd",),
    )
    min_compression: float = setting(
        2.0,
        "A matrix is compressed if its factors have fewer elements by this factor. What is not"
        " compressed travels as it is.",
        above=0,
        maximum=1e6,
        only_for=("powersgd",),
    )
    density: float = setting(
        0.01,
        "Share of a tensor's elements that travels in a step.",
        above=0,
        maximum=0.5,
        only_for=SPARSE,
    )
    density_warmup_steps: int = setting(
        0,
        "Steps before which more travels: 1/4, 1/16, ... down to `density`, each as long.",
        minimum=0,
        only_for=SPARSE,
    )
    momentum: float = setting(
        0.0,
        "Momentum of a velocity that each worker keeps of its own gradients, in place of the"
        " optimizer's, which must have none (`optimizer.momentum`, `beta1`); 0 = no velocity.",
        minimum=0,
        below=1,
        only_for=SPARSE,
    )
    inner_steps: int = setting(
        16,
        "Steps of a round: what is exchanged once, committed and, after a failure, redone as a"
        " whole. Evaluations, checkpoints and comparisons that fall due within a round happen"
        " at its end; rounds go on over the end of an epoch.",
        minimum=1,
        maximum=65536,
        only_for=LOCAL,
    )
    inner_steps_double_every: int = setting(
        0,
        "After every so many steps rounds get twice as long; 0 = they stay as they are.",
        minimum=0,
        only_for=LOCAL,
    )
    inner_steps_max: int = setting(
        0,
        "Steps of a round that grows are never more than this; required with"
        " `inner_steps_double_every`.",
        minimum=0,
        maximum=65536,
        only_for=LOCAL,
    )
    local_start_step: int = setting(
        0,
        "Until this step training is `replicated` (post-local SGD). Local steps from the first"
        " one on cost most: weights change fastest then.",
        minimum=0,
        only_for=LOCAL,
    )
    outer_lr: float = setting(
        0.7,
        "Learning rate of the outer optimizer.",
        above=0,
        maximum=100,
        only_for=("diloco", "streaming_diloco"),
    )
    outer_momentum: float = setting(
        0.9,
        "Nesterov's momentum of the outer optimizer; its buffers are shared state.",
        minimum=0,
        below=1,
        only_for=("diloco", "streaming_diloco"),
    )
    fragments: int = setting(
        4,
        "Parts of the model that are exchanged in turn, each once in `inner_steps` steps, which"
        " are a multiple of it: a round has `inner_steps` / `fragments` steps.",
        minimum=1,
        maximum=1024,
        only_for=("streaming_diloco",),
    )
    mixing: float = setting(
        0.5,
        "Part that stays of a worker's own weights of a fragment when its exchange is applied.",
        minimum=0,
        maximum=1,
        only_for=("streaming_diloco",),
    )

    stage: int = setting(
        1,
        "Division among the workers. 1: the optimizer's state. 2: also the gradients."
        " 3: also the parameters, which are gathered for each layer when it is computed.",
        minimum=SHARDED_STAGES[0],
        maximum=SHARDED_STAGES[-1],
        only_for=SHARDED,
    )
    owners: Literal["workers", "servers"] = setting(
        "workers",
        "`workers`: each worker owns a part of the state. `servers`: parameter servers"
        " (`dtd-worker --role server`) own it; workers push gradients to them and pull"
        " parameters, each once a step, and hold no part themselves. Worth it where servers"
        " have faster links than workers.",
        only_for=SHARDED,
    )
    mirrors: int = setting(
        1,
        "Further workers (or servers) that hold a copy of each part, kept equal by the same"
        " updates. The loss of so many of them at once costs no step; with 0 every loss costs"
        " the steps since the newest checkpoint. If there are `mirrors` + 1 of them or fewer,"
        " each holds everything.",
        minimum=0,
        maximum=7,
        only_for=SHARDED,
    )

    update: Literal["all", "owner"] = setting(
        "all",
        "`all`: each worker computes the whole update, so workers whose results differ in a bit,"
        " such as a CPU beside a GPU, are refused. `owner`: what one of them has computed for each"
        " part of the state is copied to the others after each step, so they may differ; sends the"
        " whole state once more.",
        only_for=("replicated", *LOCAL),
    )

    @property
    def copies_updates(self) -> bool:
        """Whether workers copy what the owner of each part of the state has computed."""
        return self.update == "owner"

    @property
    def sharded(self) -> bool:
        """Whether the state is divided among the workers, or parameter servers."""
        return self.name in SHARDED

    @property
    def has_servers(self) -> bool:
        return self.sharded and self.owners == "servers"

    @property
    def round_steps(self) -> int:
        """Steps of a round, at first."""
        if self.name == "streaming_diloco":
            return max(1, self.inner_steps // self.fragments)
        return self.inner_steps

    @property
    def local_from(self) -> int | None:
        """The step from which each worker has an optimizer state of its own; None: never."""
        return self.local_start_step if self.name in LOCAL else None
