"""The bucket plan: parameters are packed into flat buckets, one all-reduce for each.

Backward reaches the last layers first, so buckets are filled in reverse parameter order; they are
small, and the first may be smaller, so that communication begins early.  A bucket has one
element type and is never split inside a parameter.  Pure arithmetic: the same parameters give the
same plan on every worker, and `digest` lets workers compare before they train.  Memory and hooks
are `dtd.strategy.buckets`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

_DIGEST_BYTES = 16
_SMALLEST_SHARE = 4
"""A bucket has at least this part of its allowed size, unless another type or nothing follows:
otherwise a bias before a large matrix would cost a whole all-reduce for a few bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterShape:
    """The properties of a parameter that the plan needs."""

    name: str
    elements: int
    item_bytes: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of one gradient: elements [start, stop) of its bucket.

    Attributes:
        parameter: index in the list that was planned.
    """

    parameter: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketLayout:
    """One bucket: its element type and the gradients in it, in memory order."""

    dtype: str
    item_bytes: int
    places: tuple[Place, ...]

    @property
    def elements(self) -> int:
        return self.places[-1].stop if self.places else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlan:
    """All buckets, in the order in which they travel."""

    parameters: tuple[ParameterShape, ...]
    buckets: tuple[BucketLayout, ...]

    def digest(self) -> str:
        """Hex hash over names, sizes and places; workers with equal ones can train together."""
        content = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for shape in self.parameters:
            content.update(f"{shape.name} {shape.elements} {shape.dtype}\n".encode())
        for bucket in self.buckets:
            content.update(f"{[place.parameter for place in bucket.places]}\n".encode())
        return content.hexdigest()


def plan_buckets(
    parameters: Sequence[ParameterShape], *, bucket_bytes: int, first_bucket_bytes: int
) -> BucketPlan:
    """Pack parameters, given in model order, into buckets.

    Args:
        parameters: the trained parameters, each once.
        bucket_bytes: a bucket of at least a quarter of this is closed before it grows beyond it; a
            smaller one takes the next parameter, however large that is.
        first_bucket_bytes: the same for the first bucket.
    """
    buckets: list[BucketLayout] = []
    members: list[int] = []
    filled_bytes = 0
    for index in reversed(range(len(parameters))):
        shape = parameters[index]
        size_bytes = shape.elements * shape.item_bytes
        limit_bytes = bucket_bytes if buckets else first_bucket_bytes
        other_type = bool(members) and parameters[members[0]].dtype != shape.dtype
        full = filled_bytes * _SMALLEST_SHARE >= limit_bytes < filled_bytes + size_bytes
        if members and (other_type or full):
            buckets.append(_lay_out(parameters, members))
            members, filled_bytes = [], 0
        members.append(index)
        filled_bytes += size_bytes
    if members:
        buckets.append(_lay_out(parameters, members))
    return BucketPlan(parameters=tuple(parameters), buckets=tuple(buckets))


def _lay_out(parameters: Sequence[ParameterShape], members: Sequence[int]) -> BucketLayout:
    places: list[Place] = []
    start = 0
    for index in members:
        stop = start + parameters[index].elements
        places.append(Place(parameter=index, start=start, stop=stop))
        start = stop
    first = parameters[members[0]]
    return BucketLayout(dtype=first.dtype, item_bytes=first.item_bytes, places=tuple(places))
