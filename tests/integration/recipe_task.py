"""A task that is put together from features, as daemons train it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from tests.jobs.recipe import Recipe
from tests.jobs.task import Task


class FromRecipe(Task):
    """Arguments: see `tests.jobs.recipe.Recipe`."""

    def __init__(self, *, features: Mapping[str, str], layers: Sequence[str]) -> None:
        super().__init__(Recipe(tuple(features.items()), tuple(layers), 1, ()))
