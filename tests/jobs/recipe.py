"""Recipes of training jobs: a task put together from features, and a way of running it.

Each feature has a plain value, its first one, to which Hypothesis shrinks.  `tests.jobs.task` makes
the task of a recipe, `tests.jobs.play` trains it with dtd, `tests.jobs.oracle` with plain torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

STEPS: Final = 6
ROWS: Final = 40
BATCH: Final = 10
MOST_RANKS: Final = 5
MOST_LAYERS: Final = 3
PLAIN: Final = 6
"""One feature in so many is chosen, and all others are plain, so that most jobs are trained."""

FEATURES: Final[dict[str, tuple[str, ...]]] = {
    "modes": ("train", "a part in eval", "all in eval"),
    "frozen": ("nothing", "the first layer", "all but the head"),
    "state_dict": ("plain", "leaves a parameter out", "copies"),
    "weights_by": ("torch", "numpy", "random"),
    "loss": (
        "mean",
        "sum and count",
        "penalty on gradients",
        "backward inside",
        "learned weights",
        "learned weights outside the model",
    ),
    "draws": ("none", "torch", "numpy", "random"),
    "reference": ("none", "a copy of the model"),
    "rows": ("fetched", "numbered", "drawn", "some drawn", "own generator", "stream"),
    "collate": ("default", "own", "leaves rows out"),
    "optimizer": (
        "sgd",
        "momentum",
        "adam",
        "adamw",
        "job adam",
        "job sgd",
        "Adadelta",
        "Adagrad",
        "Adamax",
        "ASGD",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "Adafactor",
        "LBFGS",
        "SparseAdam",
        "two",
    ),
    "groups": ("one", "two", "reversed"),
    "lr": ("number", "tensor", "numpy"),
    "step_hook": ("none", "watches", "scales", "renormalises", "clips gradients", "teacher"),
    "gradient_hook": ("none", "watches", "doubles", "clamps"),
    "accumulated_hook": ("none", "watches", "clears"),
    "schedule": ("none", "lambda", "one cycle", "step"),
    "clip": ("no", "yes"),
    "accumulation": ("1", "2", "3"),
    "averages": ("no", "yes"),
    "checkpointing": ("no", "yes"),
    "evaluation": ("no", "yes"),
    "resumed": ("the same", "parameters in another order"),
    "strategy": ("replicated", "stage 1", "stage 2", "stage 3"),
    "mirrors": ("0", "1"),
}

LAYERS: Final = (
    "linear",
    "conv",
    "batch norm",
    "batch norm without statistics",
    "layer norm",
    "group norm",
    "embedding",
    "sparse embedding",
    "tied",
    "parametrised",
    "lazy",
    "complex",
    "float32",
    "dropout",
    "gain",
    "unused",
    "rows take branches",
    "late buffer",
    "counter",
    "centre",
    "unsaved buffer",
    "extra state",
)

EVENTS: Final = ("cut start", "cut wait", "cut gather", "yield", "join", "leave", "lose", "stop")


@dataclass(frozen=True, slots=True)
class Event:
    """An interruption of training.

    Attributes:
        step: committed steps before it.
        kind: one of EVENTS; a cut is in the step that follows.
        rank: its rank, modulo the number of ranks.
    """

    step: int
    kind: str
    rank: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """A task and a way of running it.

    Attributes:
        features: a value for each key of FEATURES.
        layers: between the rows and the head.
        ranks: how many begin.
        events: in order, at most one at each step.
    """

    features: tuple[tuple[str, str], ...]
    layers: tuple[str, ...]
    ranks: int
    events: tuple[Event, ...]

    def __getitem__(self, feature: str) -> str:
        return dict(self.features)[feature]

    @property
    def unusual(self) -> tuple[str, ...]:
        """Features that are not plain, as words."""
        chosen = [f"{key}: {value}" for key, value in self.features if value != FEATURES[key][0]]
        return (*chosen, *(f"layer: {one}" for one in dict.fromkeys(self.layers)))

    def __repr__(self) -> str:
        events = ", ".join(f"{one.kind} of {one.rank} at {one.step}" for one in self.events)
        return f"<{self.ranks} ranks; {'; '.join(self.unusual) or 'plain'}; {events or 'no event'}>"


def made(ranks: int = 2, layers: tuple[str, ...] = (), events: Any = (), **chosen: str) -> Recipe:
    """A recipe with these features, all others plain."""
    assert chosen.keys() <= FEATURES.keys(), chosen
    features = tuple((key, chosen.get(key, values[0])) for key, values in FEATURES.items())
    assert all(value in FEATURES[key] for key, value in features), chosen
    return Recipe(features, layers, ranks, tuple(Event(*one) for one in events))


def chosen(choose: Callable[[Sequence[Any]], Any]) -> Recipe:
    """A recipe by chance.

    Args:
        choose: picks one of several values; the first ones make plain recipes.
    """
    features = {key: values[0] for key, values in FEATURES.items()}
    for key, values in FEATURES.items():
        if key == "strategy" or choose(range(PLAIN)) == PLAIN - 1:
            features[key] = choose(values)
    layers = tuple(choose(LAYERS) for _ in range(choose(range(MOST_LAYERS + 1))))
    if features["collate"] == "leaves rows out":  # one row may be left, too few for these
        layers = tuple(one for one in layers if not one.startswith("batch norm"))
    events = tuple(
        Event(step, choose(EVENTS), choose(range(MOST_RANKS)))
        for step in range(1, STEPS)
        if choose(range(PLAIN)) == PLAIN - 1
    )
    return Recipe(tuple(features.items()), layers, choose(range(1, MOST_RANKS + 1)), events)


@st.composite
def recipes(draw: Callable[[Any], Any]) -> Recipe:
    """Recipes of jobs, for Hypothesis."""
    return chosen(lambda values: draw(st.sampled_from(values)))
