"""Some of the tasks that are put together from features, trained by real daemons.

`tests/property/test_training_jobs.py` trains many in one process; here processes, sockets and
checkpoints have their part in it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from dtd.job import to_mapping
from dtd.wire import messages as m
from tests.integration.conftest import Command, Daemons
from tests.jobs import oracle
from tests.jobs.play import SEED, Job, spec_of
from tests.jobs.recipe import STEPS, Recipe, made
from tests.jobs.verdict import TOLERANCE, slices_of

pytestmark = pytest.mark.integration

RANKS = 2
RECIPES = {
    "drawing": made(
        RANKS,
        ("conv", "batch norm", "dropout"),
        draws="numpy",
        weights_by="random",
        rows="some drawn",
        optimizer="momentum",
        accumulation="2",
        schedule="one cycle",
    ),
    "divided": made(
        RANKS,
        ("tied", "layer norm", "embedding"),
        strategy="stage 3",
        optimizer="adamw",
        groups="two",
        clip="yes",
        mirrors="1",
    ),
    "sums": made(
        RANKS,
        ("parametrised", "sparse embedding", "counter"),
        strategy="stage 2",
        loss="sum and count",
        collate="own",
        checkpointing="yes",
        gradient_hook="doubles",
    ),
    "two optimizers": made(
        RANKS, ("gain", "float32"), optimizer="two", averages="yes", evaluation="yes"
    ),
    "own state": made(
        RANKS,
        ("centre", "group norm"),
        state_dict="leaves a parameter out",
        step_hook="renormalises",
        lr="tensor",
        reference="a copy of the model",
    ),
}


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator and two workers."""
    return start_daemons(RANKS)


def mapping(recipe: Recipe, job: Job) -> dict[str, Any]:
    spec = to_mapping(spec_of(recipe, job.arena))
    spec["job"]["task"] = "recipe_task:FromRecipe"
    spec["task"] = {"features": dict(recipe.features), "layers": list(recipe.layers)}
    spec["elastic"] |= {"min_workers": RANKS, "settle_s": 0.0}
    return spec


@pytest.mark.parametrize("name", RECIPES)
def test_daemons_train_as_plain_torch(
    daemons: Daemons, dtdctl: Command, tmp_path: Path, name: str
) -> None:
    recipe = RECIPES[name]
    plan = Job(recipe, tmp_path / "plan")
    try:
        plan.begin()
        plan.worlds = [RANKS] * STEPS
        steps = slices_of(recipe, plan)
        submitted = daemons.ask(m.SubmitJob(spec=mapping(recipe, plan)))
    finally:
        plan.close()
    answer = daemons.wait(submitted["job"])
    assert answer["state"] == "done", answer
    exit_code, _out, err = dtdctl("fetch", submitted["job"], str(tmp_path / "fetched"))
    assert exit_code == 0, err
    weights = safetensors.torch.load_file(tmp_path / "fetched" / "model.safetensors")
    expected = oracle.train(recipe, SEED, steps, lambda model: None).model
    for parameter, value in expected.named_parameters():
        torch.testing.assert_close(
            weights[parameter],
            value.detach(),
            rtol=TOLERANCE,
            atol=TOLERANCE,
            msg=f"{parameter} differs",
        )
