"""Evaluation across the ranks, and early stopping by what it finds.

Every rank takes a slice of the rows, and all get the same figures: each metric is a sum and a
divisor, which ranks exchange in one word and add in rank order, so the result is independent of
their number except for rounding.  When to evaluate depends on the step (`dtd.train.plan`).

Early stopping ends the job when a metric has not improved for some evaluations.  Its history is
part of the state: an evaluation is added at the commit of the step that follows it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from dtd.engine.control_word import read_words
from dtd.errors import ErrorCode, ProtocolError, TaskError
from dtd.job import JobSpec, TrainTable
from dtd.rules import did_you_mean
from dtd.text.names import METRIC_WORDS, is_metric
from dtd.text.shown import counted, shown
from dtd.train.data.loader import Loader, warn_nobody
from dtd.train.data.rows import NO_STEP, BatchRequest, draw_key, seed_generators, shape_of
from dtd.train.record import Warn
from dtd.train.task import MapDataset, Task
from dtd.train.warm_up.model_setup import autocast, evaluation_mode
from dtd.wire.messages import MAX_WORD_BYTES

_NAME_SIZE = struct.Struct("!H")
_VALUES = struct.Struct("!dd")

Gather = Callable[[bytes], list[bytes]]

Sums = dict[str, tuple[float, float]]
"""Name of a metric -> (sum, divisor)."""


class Evaluator:
    """The evaluation of one task."""

    def __init__(
        self,
        task: Task,
        dataset: MapDataset,
        spec: JobSpec,
        device: torch.device,
        *,
        warn: Warn = warn_nobody,
    ) -> None:
        if hasattr(task, "build_optimizers") and not hasattr(task, "metrics"):
            raise TaskError(
                "the task has several optimizers and an eval_dataset(), and no metrics()",
                remedy="add metrics(model, batch): which of the losses counts is yours to say",
            )
        self._task = task
        self._spec = spec
        self._device = device
        self.rows = len(dataset)
        self._loader = Loader(dataset, seed=spec.job.seed, device=str(device), warn=warn)

    def evaluate(
        self,
        model: nn.Module,
        *,
        own: tuple[int, int],
        gather: Gather,
        progress: Callable[[], None],
        begins: Callable[[str, Hashable], None],
    ) -> dict[str, float]:
        """Return the metrics over all rows; every rank calls this at the same step.

        Args:
            model: set to evaluation mode in the meantime.
            own: start and stop of this rank's slice of the rows.
            gather: gathers bytes from all ranks.
            progress: called after every batch; may raise to cancel the evaluation.
            begins: called with the kind of work that follows, and the shape of its batch.

        Raises:
            TaskError: the task's metrics are malformed.
            UnreadableWord: another rank's sums are malformed.
        """
        begins("evaluation", None)
        word = pack_sums(self._sums(model, *own, progress, begins))
        return mean_values(read_words(gather(word), unpack_sums))

    def evaluate_some(
        self, model: nn.Module, *, batches: int, progress: Callable[[], None]
    ) -> dict[str, float]:
        """Return the metrics over the first few batches, on this rank alone."""
        rows = min(self.rows, batches * self._spec.train.eval_batch_size)
        # The warm-up has one time limit for all of its work.
        sums = self._sums(model, 0, rows, progress, lambda _kind, _shape: None)
        return mean_values([unpack_sums(pack_sums(sums))])

    def close(self) -> None:
        self._loader.close()

    def _sums(
        self,
        model: nn.Module,
        start: int,
        stop: int,
        progress: Callable[[], None],
        begins: Callable[[str, Hashable], None],
    ) -> Sums:
        size = self._spec.train.eval_batch_size
        requests = [
            BatchRequest(step=index, epoch=0, rows=tuple(range(begin, min(begin + size, stop))))
            for index, begin in enumerate(range(start, stop, size))
        ]
        self._loader.start(lambda index: requests[index] if index < len(requests) else None)
        sums: Sums = {}
        precision = autocast(self._spec.train.precision, self._device)
        with evaluation_mode(model), torch.no_grad(), precision:
            for request in requests:
                batch = self._loader.next(request).batch
                progress()
                begins("evaluation batch", shape_of(batch))
                key = draw_key(self._spec.job.seed, NO_STEP, request.rows[0])
                seed_generators(key, self._device)
                _add(sums, self._measure(model, batch, len(request.rows)))
                progress()
        return sums

    def _measure(self, model: nn.Module, batch: Any, rows: int) -> Sums:
        measure = getattr(self._task, "metrics", None)
        sums = _checked(measure(model, batch)) if measure is not None else {}
        computes = getattr(self._task, "can_rehearse", True)
        if "loss" not in sums and computes and not hasattr(self._task, "build_optimizers"):
            loss = self._task.loss(model, batch)
            if isinstance(loss, tuple):
                sums["loss"] = (float(loss[0]), float(loss[1]))
            else:
                sums["loss"] = (float(loss) * rows, float(rows))
        return sums


def pack_sums(sums: Mapping[str, tuple[float, float]]) -> bytes:
    """Encode one rank's sums."""
    word = b"".join(
        _NAME_SIZE.pack(len(name.encode())) + name.encode() + _VALUES.pack(*values)
        for name, values in sums.items()
    )
    if len(word) > MAX_WORD_BYTES:
        raise TaskError(
            f"metrics() of the task returned {len(sums)} metrics, {len(word)} bytes with names",
            remedy=f"return less than {MAX_WORD_BYTES} bytes of them",
        )
    return word


def unpack_sums(word: bytes) -> Sums:
    """Decode one rank's sums.

    Raises:
        ProtocolError: BAD_PAYLOAD if they are malformed.
    """
    sums: Sums = {}
    at = 0
    try:
        while at < len(word):
            (size,) = _NAME_SIZE.unpack_from(word, at)
            at += _NAME_SIZE.size
            name = word[at : at + size].decode()
            at += size
            sums[name] = _VALUES.unpack_from(word, at)
            at += _VALUES.size
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(ErrorCode.BAD_PAYLOAD, f"figures of an evaluation: {error}") from None
    return sums


def mean_values(by_rank: Sequence[Sums]) -> dict[str, float]:
    """Add in rank order, then divide; a metric with divisor 0 is NaN."""
    total: Sums = {}
    for sums in by_rank:
        _add(total, sums)
    return {
        name: value / count if count else float("nan") for name, (value, count) in total.items()
    }


def _add(total: Sums, sums: Sums) -> None:
    for name, (value, count) in sums.items():
        so_far, counted = total.get(name, (0.0, 0.0))
        total[name] = (so_far + value, counted + count)


def _checked(values: Any) -> Sums:
    sums: Sums = {}
    pairs = values.items() if isinstance(values, Mapping) else [("", values)]
    for name, pair in pairs:
        if not (isinstance(name, str) and name and isinstance(pair, tuple) and len(pair) == 2):
            raise TaskError(
                f"metrics() of the task returned {name!r}: {pair!r}",
                remedy="return {name: (sum over the batch, what to divide it by)}",
            )
        if not is_metric(name):
            raise TaskError(
                f"metrics() of the task names a metric {shown(name)}",
                remedy=f"a metric's name has {METRIC_WORDS}",
            )
        sums[name] = (_number(name, pair[0]), _number(name, pair[1]))
    return sums


def _number(name: str, value: Tensor | float) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TaskError(
            f"metrics() of the task returned for {name!r} what is no number: {error}",
            remedy="return {name: (sum over the batch, what to divide it by)}",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """Summary of the evaluations so far.

    Attributes:
        best: the best value of the metric; None before the first evaluation.
        waited: number of evaluations since the best one.
        goal: the mode and the metric, such as "min loss"; empty before the first evaluation.
    """

    best: float | None = None
    waited: int = 0
    goal: str = ""


NOTHING_SEEN: Final = EarlyStop()


def _named(spec: JobSpec) -> dict[str, str]:
    """The settings that name a metric, with what they name."""
    settings = {
        "checkpoint.best_metric": spec.checkpoint.best_metric,
        "train.early_stop_metric": spec.train.early_stop_metric,
    }
    return {setting: name for setting, name in settings.items() if name}


def check_evaluated(spec: JobSpec, *, has_evaluation: bool) -> None:
    """Check that there are evaluations if the job names a metric."""
    for setting, name in _named(spec).items():
        if not has_evaluation:
            raise TaskError(
                f"{setting} is {name!r}, and the task has no eval_dataset()",
                remedy=f"give it one, or leave {setting} out",
            )


def check_named(spec: JobSpec, metrics: Collection[str]) -> None:
    """Check that an evaluation has the metrics that the job names."""
    for setting, name in _named(spec).items():
        _check_has(metrics, setting, name)


def _check_has(metrics: Collection[str], setting: str, name: str) -> None:
    if name not in metrics:
        raise TaskError(
            f"{setting} is {name!r}, and the evaluation has"
            f" {', '.join(sorted(metrics)) or 'no metric'}{did_you_mean(name, metrics)}",
            remedy="name one of these, or return it from metrics(model, batch)",
        )


def judge(table: TrainTable, seen: EarlyStop, metrics: Mapping[str, float]) -> EarlyStop:
    """Take one more evaluation into account.

    A job may continue from the state of one with another metric: then nothing is seen yet.
    """
    name = table.early_stop_metric
    if not name:
        return seen
    _check_has(metrics, "train.early_stop_metric", name)
    goal = f"{table.early_stop_mode} {name}"
    if seen.goal != goal:
        seen = NOTHING_SEEN
    value, best = metrics[name], seen.best
    better = best is None or (value < best if table.early_stop_mode == "min" else value > best)
    if math.isfinite(value) and better:
        return EarlyStop(best=value, goal=goal)
    return EarlyStop(best=best, waited=seen.waited + 1, goal=goal)


def why_it_ends(table: TrainTable, seen: EarlyStop) -> str:
    """Return why the job ends now; empty if it continues."""
    if not table.early_stop_metric or seen.waited < table.early_stop_patience:
        return ""
    best = "was never finite" if seen.best is None else f"was {seen.best:g} at best"
    return (
        f"{table.early_stop_metric} {best} and has not improved for"
        f" {counted(seen.waited, 'evaluation')}"
    )
