"""Initial weights of a job: from another job's checkpoint, or from an uploaded file.

Only parameters and buffers are loaded, by name.  Every worker has the same file, so the fresh state
is the same on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from dtd.checkpoint.format import Progress, no_progress
from dtd.errors import CheckpointError
from dtd.train.bulk import copy_into
from dtd.train.record import Reporter
from dtd.train.state.replica import Replica
from dtd.train.state.tensors import MODEL
from dtd.train.state.weights import contradiction, named_groups, plain_name

_MOST_NAMED = 6


class FirstWeights:
    """A file of weights that a fresh state begins with.

    Args:
        path: a safetensors file.
        strict: every weight in it and in the model must fit.
        reporter: told of what was left out.
    """

    def __init__(self, path: Path, *, strict: bool, reporter: Reporter) -> None:
        self._path = path
        self._strict = strict
        self._reporter = reporter

    def give(self, replica: Replica) -> None:
        """Give a replica the weights.

        Raises:
            CheckpointError: the file cannot be read, or its weights do not fit.
        """
        try:
            loaded = safetensors.torch.load_file(self._path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self._path} cannot be read: {error}") from error
        take_weights(
            replica,
            {MODEL + name: tensor for name, tensor in loaded.items()},
            source=f"the file {self._path.stem[:12]}",
            strict=self._strict,
            reporter=self._reporter,
        )


def take_weights(
    replica: Replica,
    tensors: Mapping[str, Tensor],
    *,
    source: str,
    strict: bool,
    reporter: Reporter,
    progress: Progress = no_progress,
) -> None:
    """Copy weights into the model, by name; numbers of another type are converted.

    Args:
        replica: the state; changes only if all is well.
        tensors: "model.<name>" -> value; other names are ignored.
        source: their name in messages.
        strict: a mismatch is an error; otherwise it is left out and reported.
        reporter: told of what was left out.
        progress: called as the copy progresses.

    Raises:
        CheckpointError: with everything that does not fit, named; or nothing fits.
    """
    plain = {
        plain_name(n.removeprefix(MODEL)): t for n, t in tensors.items() if n.startswith(MODEL)
    }
    groups = named_groups(replica.model)
    given, renamed = _under_own_names(groups, plain, source)
    copies, unfit = _matched(groups, given, source)
    if unfit and (strict or not copies):
        raise CheckpointError(
            f"the weights of {source} do not fit: {_listed(unfit)}",
            remedy="use the task that made them, or take what fits: --no-strict",
        )
    with torch.no_grad():
        for tensor, value in copies:
            copy_into(tensor, value.to(tensor.dtype), progress)
    if replica.averages is not None:
        replica.averages.begin()
    if renamed:
        reporter.warning("weights_renamed", renamed)
    if unfit:
        taken = f"{len(copies)} of {len(groups)} weights are taken from {source}"
        reporter.warning("weights_left_out", f"{taken}; left out: {_listed(unfit)}")


def _under_own_names(
    groups: Sequence[tuple[list[str], Tensor]], given: Mapping[str, Tensor], source: str
) -> tuple[Mapping[str, Tensor], str]:
    """Weights under the model's names, where all names of one of the two have a prefix more.

    `nn.DataParallel` and DDP put `module.` before them, and a module that holds the model its
    attribute.

    Returns:
        the weights, and in words what was changed; "" if nothing was.
    """
    own = [name for names, _ in groups for name in names]
    if not given.keys().isdisjoint(own):
        return given, ""
    more = _prefix([*given], [names for names, _ in groups])
    if more:
        said = f'the names in {source} begin with "{more}", which the model\'s do not'
        return {name.removeprefix(more): value for name, value in given.items()}, said
    less = _prefix(own, [[name] for name in given])
    said = f'the model\'s names begin with "{less}", which those in {source} do not'
    return ({less + name: value for name, value in given.items()}, said) if less else (given, "")


def _prefix(longer: Sequence[str], shorter: Sequence[Sequence[str]]) -> str:
    """The prefix without which names are those of another model; "" if there is none.

    All of the longer names have it, or those that do are all of the shorter ones.  Where two do
    as well, as those of two towers of one shape, nothing says which is meant.

    Args:
        longer: names with the prefix.
        shorter: names without it, all those of one tensor together.
    """
    parts = [name.split(".")[:-1] for name in longer]
    prefixes = {".".join(one[:length]) + "." for one in parts for length in range(1, len(one) + 1)}
    fits: dict[str, int] = {}
    for prefix in prefixes:
        rest = {name.removeprefix(prefix) for name in longer if name.startswith(prefix)}
        fits[prefix] = sum(not rest.isdisjoint(names) for names in shorter)
    most = max(fits.values(), default=0)
    best = [prefix for prefix, count in fits.items() if count == most > 0]
    if len(best) != 1:
        return ""
    covers = most == len(shorter) or all(name.startswith(best[0]) for name in longer)
    return best[0] if covers else ""


def _matched(
    groups: Sequence[tuple[list[str], Tensor]], given: Mapping[str, Tensor], source: str
) -> tuple[list[tuple[Tensor, Tensor]], list[str]]:
    """Return the copies to make, as (target, source), and descriptions of what does not fit."""
    known = {name for names, _ in groups for name in names}
    unfit = [f"{name} is only in {source}" for name in given if name not in known]
    copies: list[tuple[Tensor, Tensor]] = []
    for names, tensor in groups:
        found = next((name for name in names if name in given), None)
        if found is None:
            unfit.append(f"{names[0]} is only in the model")
        elif differing := contradiction(names, given, tensor):
            unfit.append(differing)
        elif given[found].shape != tensor.shape:
            there, here = tuple(given[found].shape), tuple(tensor.shape)
            unfit.append(f"{found} is {there} there and {here} in the model")
        else:
            copies.append((tensor, given[found]))
    return copies, unfit


def _listed(found: list[str]) -> str:
    more = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return "; ".join(found[:_MOST_NAMED]) + more
