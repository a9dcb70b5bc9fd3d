"""The user's side of a job: the task's methods, and the resolution of its name in a job file.

A task is any object with the three methods of `Task`; optional ones are looked up by
`eval_dataset_of`, or by `getattr` where they are used.  Every mistake in a task raises a
`TaskError` whose message says what is missing and what to type.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from torch import Tensor, nn
from torch.utils.data import DataLoader

from dtd.errors import TaskError
from dtd.rules import did_you_mean
from dtd.tasks import BUILT_IN

_REQUIRED = ("build_model", "train_dataset", "loss")
_OPTIONAL = (
    *("eval_dataset", "metrics", "collate", "row_weights", "row_lengths", "row_order"),
    *("build_optimizer", "build_optimizers", "updates", "build_schedule"),
    *("on_start", "on_step", "on_evaluation", "on_checkpoint", "on_end"),
    *("state_dict", "load_state_dict"),
)
_PACKAGE_OF = {"sklearn": "scikit-learn", "PIL": "pillow", "cv2": "opencv-python", "yaml": "pyyaml"}


class MapDataset(Protocol):
    """Rows by number.

    Random augmentation draws from the generators of torch, numpy or `random`, which are keyed by
    (seed, epoch, row) before each row.  A dataset may also offer
    `fetch(row_ids, *, epoch, seed) -> batch`: all rows at once, called from a thread of its own;
    it must leave those generators alone and key its draws itself.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Any: ...


Collate = Callable[[list[Any]], Any]
"""Rows, in order -> their batch."""


class Task(Protocol):
    """The user's model, data and loss; docs/tasks.md has the optional methods."""

    def build_model(self) -> nn.Module:
        """A freshly initialised model on the CPU."""
        ...

    def train_dataset(self) -> MapDataset:
        """The rows to train on, the same on every worker."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor | tuple[Tensor, float | Tensor]:
        """The mean over the batch's rows, or (sum, weight) where rows weigh differently."""
        ...


def load_task(reference: str, arguments: Mapping[str, Any]) -> Task:
    """Make the task that a job names.

    Args:
        reference: a built-in task's name or "package.module:attribute"; the attribute is a class
            or function to call, or a ready task.  The current directory is searched first.
        arguments: the job's [task] table, as keyword arguments.

    Raises:
        TaskError: it cannot be found or made, or lacks a method.
    """
    module_name, attribute_name = _split(reference)
    module = _import(reference, module_name)
    attribute = getattr(module, attribute_name, None)
    if attribute is None:
        raise TaskError(
            f"module {module_name} has no {attribute_name!r}"
            f"{did_you_mean(attribute_name, vars(module))}",
            remedy="name a class, a function or an object in it",
        )
    task = _make(reference, attribute, arguments)
    missing = [name for name in _REQUIRED if not callable(getattr(task, name, None))]
    if missing:
        raise TaskError(
            f"task {reference} lacks the method {', '.join(missing)}",
            remedy="a task has build_model(), train_dataset() and loss(model, batch)",
        )
    for name in _OPTIONAL:
        value = getattr(task, name, None)
        if value is not None and not callable(value):
            raise TaskError(
                f"{name} of task {reference} is a {type(value).__name__}; dtd calls it as a method",
                remedy="give the attribute another name",
            )
    return cast("Task", task)


def stand_in(task: Task) -> Task:
    """Copy a task, the containers in its attributes, and a task that it is made around.

    A method that is called once more for its result is called on the copy: the task keeps
    referring to what is in use, such as its model.
    """
    return cast("Task", _copied(task, {}))


def _copied(task: Any, copies: dict[int, Any]) -> Any:
    """Copy by attributes: the task's own methods for copies or pickles are not called."""
    if id(task) in copies:
        return copies[id(task)]
    try:
        attributes, other = vars(task), object.__new__(type(task))
    except TypeError:
        return task  # a module or a class
    copies[id(task)] = other
    for name, value in attributes.items():
        if hasattr(value, "build_model"):
            vars(other)[name] = _copied(value, copies)
        elif isinstance(value, dict | list | set):  # those of an nn.Module hold its parameters
            vars(other)[name] = copy.copy(value)
        else:
            vars(other)[name] = value
    return other


class CollatedRows:
    """Rows of a dataset with the task's own way to make a batch of them."""

    def __init__(self, dataset: MapDataset, collate: Collate) -> None:
        self.dataset, self.collate = dataset, collate
        self.first_rows = getattr(dataset, "first_rows", None)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Any:
        return self.dataset[row]


def train_dataset_of(
    task: Task, numbered: Callable[[Any], MapDataset | None] | None = None
) -> MapDataset:
    """The task's training rows, at least one.

    Raises:
        TaskError: it is not a dataset of numbered rows, or it is empty.
    """
    dataset: Any = task.train_dataset()
    _refuse_batches("train_dataset", dataset)
    rows = numbered(dataset) if numbered is not None else None
    if rows is None:
        rows = _checked("train_dataset", dataset)
    return _collated(task, "train_dataset", rows)


def eval_dataset_of(task: Task) -> MapDataset | None:
    """The task's evaluation rows; None if it has none.

    Raises:
        TaskError: it is not a dataset of numbered rows, or it is empty.
    """
    method = getattr(task, "eval_dataset", None)
    dataset = method() if method is not None else None
    if dataset is None:
        return None
    _refuse_batches("eval_dataset", dataset)
    return _collated(task, "eval_dataset", _checked("eval_dataset", dataset))


def _collated(task: Task, method: str, dataset: MapDataset) -> MapDataset:
    collate = getattr(task, "collate", None)
    if collate is None:
        return dataset
    if hasattr(dataset, "fetch"):
        raise TaskError(
            f"{method}() returned a dataset with fetch(), which makes batches itself, and the task"
            " has a collate(rows)",
            remedy="remove one of the two",
        )
    return CollatedRows(dataset, collate)


def _refuse_batches(method: str, dataset: Any) -> None:
    """Refuse a DataLoader; one with batch_size=None yields rows, and is a stream of them."""
    if isinstance(dataset, DataLoader) and dataset.batch_sampler is not None:
        raise TaskError(
            f"{method}() returned a {type(dataset).__name__}, which makes batches itself",
            remedy="return its dataset: dtd shuffles and batches. job.global_batch_size takes the"
            " place of its batch_size, train.loader_workers that of num_workers, collate(rows) of"
            " the task that of collate_fn, and row_order() that of a sampler",
        )


def _checked(method: str, dataset: Any) -> MapDataset:
    kind = type(dataset)
    if not (hasattr(kind, "__len__") and hasattr(kind, "__getitem__")):
        raise TaskError(
            f"{method}() returned a {kind.__name__}, which has no numbered rows",
            remedy="return an object with __len__() and __getitem__(row)",
        )
    if len(dataset) == 0:
        raise TaskError(f"{method}() returned a dataset without rows", remedy="check its data")
    return cast("MapDataset", dataset)


def _split(reference: str) -> tuple[str, str]:
    known = BUILT_IN.get(reference, reference)
    module_name, colon, attribute_name = known.partition(":")
    if not (module_name and colon and attribute_name.isidentifier()):
        raise TaskError(
            f"there is no built-in task {reference!r}{did_you_mean(reference, BUILT_IN)}",
            remedy=f"take one of {', '.join(sorted(BUILT_IN))}, or write your own task as"
            ' "package.module:attribute"',
        )
    return module_name, attribute_name


def _import(reference: str, module_name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does; loader processes inherit it
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            raise TaskError(
                f"task {reference}: there is no module {module_name} in {here} or installed",
                remedy="have `dtdctl submit` ship it, install it on the workers, or set PYTHONPATH",
            ) from error
        package = _PACKAGE_OF.get(missing.partition(".")[0], missing.partition(".")[0])
        raise TaskError(
            f"task {reference} needs the package {package}, which is not installed",
            remedy=f"type: pip install {package}; a module of your own goes into the task's package"
            " or beside it, from where `dtdctl submit` ships what import statements name",
        ) from error
    except TaskError:
        raise
    except Exception as error:
        raise TaskError(
            f"task {reference}: importing {module_name} raised {_summary(error)}",
            remedy=f"try: python -c 'import {module_name}'",
        ) from error


def _make(reference: str, attribute: Any, arguments: Mapping[str, Any]) -> Any:
    ready = not inspect.isclass(attribute) and all(hasattr(attribute, name) for name in _REQUIRED)
    if ready or not callable(attribute):
        if arguments:
            raise TaskError(
                f"task {reference} is a ready object and takes no arguments",
                remedy="remove the [task] table or name a class",
            )
        return attribute
    _check_arguments(reference, attribute, arguments)
    try:
        return attribute(**arguments)
    except TaskError:
        raise
    except Exception as error:
        raise TaskError(f"task {reference} could not be made: {_summary(error)}") from error


def _check_arguments(reference: str, factory: Any, arguments: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # a callable that does not tell; calling it will
    try:
        signature.bind(**arguments)
    except TypeError as error:
        accepted = ", ".join(signature.parameters) or "no arguments"
        raise TaskError(
            f"the [task] table does not fit task {reference}: {error}",
            remedy=f"it takes {accepted}",
        ) from error


def _summary(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
