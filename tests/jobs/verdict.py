"""The judgement of a recipe: trained as in plain torch, refused before training, or neither."""

from __future__ import annotations

import tempfile
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from dtd.errors import JobSpecError, TaskError
from tests.jobs import oracle
from tests.jobs.oracle import Slice, Trained
from tests.jobs.play import SEED, Job
from tests.jobs.recipe import Recipe
from tests.sim.store import in_memory

TOLERANCE: Final = 1e-5
BY_SLICES: Final = frozenset(
    {"dropout", "batch norm", "batch norm without statistics", "centre", "counter"}
)
"""Layers whose losses or buffers depend on which rows go through the model together."""

SAME_BITS: Final = frozenset({"cut start", "cut wait", "cut gather", "yield", "stop"})
"""Events after which as many ranks continue as before."""


@dataclass(frozen=True)
class Verdict:
    """Result of a recipe.

    Attributes:
        kind: agrees; warned, for a task that trains differently each time, with a warning;
            refused; or fails.
        why: the warning, the refusal or the failure.
    """

    kind: Literal["agrees", "warned", "refused", "fails"]
    why: str = ""


def judge(recipe: Recipe) -> Verdict:
    """Train a recipe with dtd and with plain torch, and compare."""
    with tempfile.TemporaryDirectory(dir=in_memory()) as directory:
        job = Job(recipe, Path(directory) / "job")
        try:
            job.play()
            if recipe["rows"] == "own generator":
                return _warned(job)
            found = _difference(recipe, job)
            if not found and _keeps_bits(recipe):
                found = _other_bits(recipe, job, Path(directory) / "whole")
        except (TaskError, JobSpecError) as error:
            if job.worlds:
                return Verdict("fails", f"refused after {len(job.worlds)} steps: {error}")
            return Verdict("refused", str(error))
        except Exception as error:  # noqa: BLE001
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            return Verdict("fails", f"{type(error).__name__} at {where}: {error}")
        finally:
            job.close()
    return Verdict("fails", found) if found else Verdict("agrees")


def _warned(job: Job) -> Verdict:
    """A dataset's own generator cannot be keyed, so there must be a warning."""
    for rank in job.arena.started:
        for event, message in rank.recorder.warnings:
            if event == "task_doubtful":
                return Verdict("warned", message)
    return Verdict("fails", "there is no warning of a generator of the dataset's own")


def _keeps_bits(recipe: Recipe) -> bool:
    """Digests are of the optimizer's parameters in their order."""
    same_ranks = all(one.kind in SAME_BITS for one in recipe.events)
    return bool(recipe.events) and same_ranks and recipe["resumed"] == "the same"


def _other_bits(recipe: Recipe, job: Job, directory: Path) -> str:
    """Compare with the same job without its events."""
    whole = Job(replace(recipe, events=()), directory)
    try:
        whole.play()
        digests = {rank.digest for rank in whole.ranks}
    finally:
        whole.close()
    return (
        "" if {rank.digest for rank in job.ranks} == digests else "interrupted, it has other bits"
    )


def _difference(recipe: Recipe, job: Job) -> str:
    expected = oracle.train(recipe, SEED, slices_of(recipe, job), _beginning(recipe, job))
    if len({rank.digest for rank in job.ranks}) != 1:
        return "digests differ"
    for rank in job.ranks:
        for compare in (_other_weights, _other_buffers, _other_state):
            found = compare(rank, expected)
            if found:
                return found
        for record in rank.recorder.steps:
            if _differ(torch.tensor(record.loss), torch.tensor(expected.losses[record.step - 1])):
                return f"the loss of step {record.step} differs"
    return ""


def slices_of(recipe: Recipe, job: Job) -> list[list[Slice]]:
    """The rows of each step: all at once, unless the loss depends on how they are divided."""
    steps = job.slices()
    if BY_SLICES & set(recipe.layers) or recipe["draws"] != "none":
        return steps
    return [
        [Slice(0, step[0].epoch, [row for one in step for row in one.rows], 0)] for step in steps
    ]


def _beginning(recipe: Recipe, job: Job) -> Any:
    """Sets what `build_model` leaves open to what dtd began with."""
    if "lazy" not in recipe.layers:
        return lambda model: None
    with tempfile.TemporaryDirectory(dir=in_memory()) as directory:
        begun = Job(replace(recipe, ranks=1, events=()), Path(directory))
        try:
            (rank,) = begun.begin()
            rank.run._begin_fresh()
            values = {name: one.detach().clone() for name, one in _named(rank.model)}
        finally:
            begun.close()

    def begin(model: nn.Module) -> None:
        model(torch.zeros(4, 6, dtype=torch.float64))
        with torch.no_grad():
            for name, one in _named(model):
                one.copy_(values[name])

    return begin


def _named(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _other_buffers(rank: Any, expected: Trained) -> str:
    saved = rank.model.state_dict().keys()
    theirs = dict(expected.model.named_buffers())
    for name, one in rank.model.named_buffers():
        if name in saved and _differ(one, theirs[name]):
            return f"the buffer {name} differs by {_relative(one, theirs[name]):.2g}"
    return ""


def _other_weights(rank: Any, expected: Trained) -> str:
    whole = {name: one.detach() for name, one in expected.model.named_parameters()}
    if rank.replica.shards is None:
        for name, one in rank.model.named_parameters():
            if _differ(one.detach(), whole[name]):
                return f"the weights {name} differ by {_relative(one.detach(), whole[name]):.2g}"
        return ""
    for tensor in rank.replica.shards.tensors():
        name = tensor.name.removeprefix("model.")
        for piece in tensor.pieces if name in whole else ():
            theirs = whole[name].reshape(-1)[piece.start : piece.stop]
            if _differ(piece.values, theirs):
                return f"the weights {name} differ by {_relative(piece.values, theirs):.2g}"
    return ""


def _other_state(rank: Any, expected: Trained) -> str:
    """Compare the optimizer's state, by parameter, where a rank has all of it."""
    if rank.replica.shards is not None:
        return ""
    names = {id(one): name for name, one in expected.model.named_parameters()}
    theirs = {
        names[id(one)]: state
        for optimizer in expected.optimizers
        for one, state in optimizer.state.items()
        if id(one) in names
    }
    for name, one in rank.model.named_parameters():
        own = rank.replica.optimizer.state.get(one, {})
        for key, value in theirs.get(name, {}).items():
            if key not in own:
                return f"the optimizer has no {key} of {name}"
            if isinstance(value, Tensor) and _differ(own[key], value):
                return f"the optimizer's {key} of {name} differs"
    return ""


def _differ(own: Tensor, theirs: Tensor) -> bool:
    return not _relative(own, theirs) <= TOLERANCE


def _relative(own: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest element; NaN where one is NaN alone."""
    own, theirs = own.detach().double() if not own.is_complex() else own, theirs.detach()
    if own.numel() == 0:
        return 0.0
    return float((own - theirs).abs().max() / theirs.abs().max().clamp_min(1e-3))
