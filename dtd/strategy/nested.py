"""JSON and tensors of an optimizer's or a schedule's state: numbers, text, tensors, lists, dicts.

A state consists of named tensors and JSON (`dtd.train.state.tensors`).  `encoded` turns a value
into JSON that refers to its tensors by name, and `decoded` turns it back: JSON has neither tuples,
nor keys other than text, nor infinity, nor the numbers of numpy.

    {"tensor": name}    {"tuple": [...]}    {"dict": [[key, value], ...]}    {"float": "inf"}
    {"numpy": [type, number]}

Numbers, text, None and lists stand for themselves.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from torch import Tensor

from dtd.errors import TaskError

_DICTS: Final[dict[str, type[Any]]] = {
    "dict": dict,
    "counter": Counter,
    "ordered": OrderedDict,
}
_NOT_FINITE: Final = ("inf", "-inf", "nan")


def leaves(value: Any) -> Iterator[Any]:
    """Yield what lies in lists, tuples and dicts, or the value itself."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the value with every tensor changed, in lists and dicts of its own."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in _DICTS.values():
        return type(value)({key: mapped(item, change) for key, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(mapped(item, change) for item in value)
    return value


def copied(value: Any) -> Any:
    """Return a copy that shares no tensor, list or dict with the value."""
    return mapped(value, lambda tensor: tensor.detach().clone())


def encoded(value: Any, name: str, tensors: dict[str, Tensor], *, keeps: str) -> Any:
    """Return JSON for a value.

    Args:
        value: the value to encode.
        name: name of its tensor, or the beginning of the names of those in it.
        tensors: receives them.
        keeps: the owner and the entry, as in "the optimizer keeps step", for the message.
    """
    if isinstance(value, Tensor):
        tensors[name] = value.detach()
        return {"tensor": name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic) and isinstance(value.item(), bool | int | float):
        return {"numpy": [value.dtype.name, encoded(value.item(), name, tensors, keeps=keeps)]}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        items = [
            encoded(item, f"{name}/{place}", tensors, keeps=keeps)
            for place, item in enumerate(value)
        ]
        return items if isinstance(value, list) else {"tuple": items}
    for kind, made_by in _DICTS.items():
        if type(value) is made_by:
            in_keys: dict[str, Tensor] = {}
            keys = [encoded(key, "", in_keys, keeps=keeps) for key in value]
            if in_keys:  # it would be another tensor when it is loaded
                raise _unfit(keeps, "with tensors as keys")
            items = encoded(list(value.values()), name, tensors, keeps=keeps)
            return {kind: [list(pair) for pair in zip(keys, items, strict=True)]}
    raise _unfit(keeps, f"as a {type(value).__name__}")


def _unfit(keeps: str, how: str) -> TaskError:
    return TaskError(
        f"{keeps} {how}, which states cannot hold",
        remedy="let it keep tensors, numbers, text, and lists, tuples and dictionaries of them",
    )


def decoded(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value for which this JSON stands.

    Raises:
        KeyError, ValueError, TypeError: it stands for none.
    """
    if isinstance(value, list):
        return [decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "float" and content in _NOT_FINITE:
        return float(content)
    if kind == "numpy":
        return np.dtype(content[0]).type(decoded(content[1], tensors))
    if kind == "tuple":
        return tuple(decoded(item, tensors) for item in content)
    pairs = [(decoded(key, tensors), decoded(item, tensors)) for key, item in content]
    return _DICTS[kind](dict(pairs))


def tensor_names(value: Any) -> Iterator[str]:
    """Yield the names of the tensors to which JSON of `encoded` refers."""
    if isinstance(value, dict):
        for kind, content in value.items():
            if kind == "tensor":
                yield content
            else:
                yield from tensor_names(content)
    elif isinstance(value, list):
        for item in value:
            yield from tensor_names(item)
