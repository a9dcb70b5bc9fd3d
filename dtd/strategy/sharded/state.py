"""The part of a state that this rank holds: slices of the parameters and of their optimizer state.

Trained parameters lie in flat buckets.  A set of shards (`dtd.engine.shards`) is a set of
element ranges of each bucket, hence of the parameters in it.  The optimizer gets these ranges as
one-dimensional parameters, *slices*, in place of the parameters themselves, in the same groups: an
optimizer that treats each element by itself computes for a slice what it would compute for the
whole parameter.  So a rank has optimizer state only for what it holds, which is the idea of ZeRO
(Rajbhandari et al. 2020, section 5.1).

A kernel may round the last elements of a tensor, which do not fill a vector register, in another
way than the others.  So a slice never extends over two segments: owner and mirrors have the same
slices, hence the same bytes.

A parameter of which this rank holds nothing has one slice without elements.  It gives the optimizer
a place for what it keeps once for each parameter, such as Adam's step: every rank has this *common*
part of the optimizer state.

When the ranks of a generation change, slices are *staged*: the optimizer has the new ones, but the
old ones remain until all ranks have agreed on the state (`dtd.strategy.sharded.regroup`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dtd.engine.shards import NOTHING, WHOLE, Division, ShardSet, united
from dtd.errors import CheckpointError
from dtd.exchange.schedule.buckets import BucketPlan
from dtd.strategy.nested import copied
from dtd.strategy.sharded.optimizers import check_shape, flattened, is_sharded

Received = Mapping[str, Sequence[tuple[int, int, Tensor]]]
"""By name of a tensor of the state: (start, stop, values) of pieces of the flattened tensor."""


@dataclass(slots=True)
class Slice:
    """Elements [start, stop) of a flattened parameter; `state` only while no optimizer has it."""

    start: int
    stop: int
    values: nn.Parameter
    state: dict[str, Any] = field(default_factory=dict)


def overlaid(entries: Sequence[tuple[Slice, Tensor]], start: int, stop: int) -> Tensor:
    """Return elements [start, stop) of what slices have; zero where they do not have them."""
    target = torch.zeros(stop - start, dtype=entries[0][1].dtype)
    for other, entry in entries:
        a, b = max(start, other.start), min(stop, other.stop)
        if a < b:
            target[a - start : b - start].copy_(entry.detach()[a - other.start : b - other.start])
    return target


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements [start, stop) of a flattened tensor of the state; `values` is live memory."""

    start: int
    stop: int
    values: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRange:
    """Elements [start, stop) of a bucket, where a trained parameter lies."""

    bucket: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedTensor:
    """A tensor of the state and the parts of it that this rank holds."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    place: BucketRange
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Values of one bucket's elements under one name, as far as this rank holds them.

    Attributes:
        pieces: (first element in the bucket, values), in ascending order.
    """

    dtype: torch.dtype
    pieces: Sequence[tuple[int, Tensor]]

    def parts(self, start: int, stop: int) -> list[tuple[int, Tensor]]:
        """Return the held pieces of elements [start, stop): (first element, values)."""
        found = []
        for first, values in self.pieces:
            a, b = max(start, first), min(stop, first + values.numel())
            if a < b:
                found.append((a, values[a - first : b - first]))
        return found


def fill(tensor: ShardedTensor, piece: Piece, given: Sequence[tuple[int, int, Tensor]]) -> None:
    """Set a piece to the values that are given for its elements, which may be more."""
    missing = piece.stop - piece.start
    for start, stop, values in given:
        if values.dtype != tensor.dtype or values.numel() != stop - start:
            raise CheckpointError(f"a part of the state has another {tensor.name}")
        a, b = max(start, piece.start), min(stop, piece.stop)
        if a < b:
            piece.values[a - piece.start : b - piece.start].copy_(values[a - start : b - start])
            missing -= b - a
    if missing:
        raise CheckpointError(
            f"a part of the state lacks elements of [{piece.start}, {piece.stop}) of {tensor.name}"
        )


@dataclass(slots=True, kw_only=True)
class _Cut:
    """All slices, by number of the parameter in the optimizer; none is part of two `segments`."""

    segments: Sequence[ShardSet]
    slices: dict[int, list[Slice]]
    lies_in_flats: bool = True
    complete: bool = True

    @property
    def holds(self) -> ShardSet:
        return united(self.segments)

    def each(self) -> Iterator[Slice]:
        for slices in self.slices.values():
            yield from slices


class ShardedState:
    """The parts of the trained parameters and of the optimizer's state that this rank holds.

    If it `owns` them, slices have memory of their own, except those of a whole state.

    Attributes:
        allocate: called before a whole state is written to the parameters.
        deallocate: called when the parameters are not in the buckets any more.
        rank: this rank in the current generation.
        division: which rank of that generation holds what.
    """

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[nn.Parameter],
        plan: BucketPlan,
        flats: Sequence[Tensor],
        *,
        owns: bool = False,
    ) -> None:
        self._owns = owns
        self.allocate: Callable[[], None] = lambda: None
        self.deallocate: Callable[[], None] = lambda: None
        self._names = list(names)
        self._parameters = list(parameters)
        self._flats = list(flats)
        self._places = [BucketRange(bucket=0, start=0, stop=0)] * len(self._parameters)
        for number, bucket in enumerate(plan.buckets):
            for at in bucket.places:
                self._places[at.parameter] = BucketRange(
                    bucket=number, start=at.start, stop=at.stop
                )
        self._place_of = {id(p): place for place, p in enumerate(self._parameters)}
        self._optimizer: torch.optim.Optimizer | None = None
        self._whole: list[list[nn.Parameter]] = []
        self._numbered: list[nn.Parameter] = []
        self._number_of: dict[int, int] = {}
        self._cut = _Cut(segments=[WHOLE], slices={})
        self._before: _Cut | None = None
        self._held_values: dict[int, Sequence[tuple[int, Tensor]]] = {}
        self.rank, self.division = 0, Division(world_size=1, mirrors=0)

    @property
    def holds(self) -> ShardSet:
        """The shards that this process can give; while new slices are staged, the old ones."""
        return (self._before or self._cut).holds

    @property
    def is_complete(self) -> bool:
        """Whether this process has the shards that it is to hold; a common part alone is not."""
        return (self._before or self._cut).complete

    @property
    def sliced(self) -> ShardSet:
        """The shards of the slices that the optimizer has, staged or not."""
        return self._cut.holds

    @property
    def lies_in_flats(self) -> bool:
        """Whether parameters of this state, or of the one before, lie in the buckets."""
        cuts = (self._cut, self._before)
        return any(cut.lies_in_flats for cut in cuts if cut is not None)

    def values(self, bucket: int) -> Sequence[tuple[int, Tensor]]:
        """Return this rank's values of a bucket of parameters: (first element, values)."""
        if bucket not in self._held_values:
            self._held_values[bucket] = self._pieces(bucket)
        return self._held_values[bucket]

    def _pieces(self, bucket: int) -> list[tuple[int, Tensor]]:
        if not self._owns:
            flat = self._flats[bucket]
            return [(a, flat[a:b]) for a, b in self._cut.holds.ranges(flat.numel())]
        pieces = []
        for number, slices in self._cut.slices.items():
            at = self._places[self._place(number)]
            if at.bucket == bucket:
                pieces += [(at.start + one.start, one.values.detach()) for one in slices]
        return sorted(pieces, key=_in_bucket)

    # --- the optimizer ---------------------------------------------------------------------

    def bind(
        self,
        optimizer: torch.optim.Optimizer,
        holds: ShardSet = WHOLE,
        entries: Mapping[str, torch.dtype] | None = None,
    ) -> None:
        """Give an optimizer over whole parameters their slices.

        Args:
            optimizer: its state is that of whole parameters, or only the common part of it.
            holds: WHOLE, or NOTHING if it has only the common part.
            entries: element types of the entries that are missing then, by `index.key`.
        """
        self._optimizer, self._before = optimizer, None
        self._whole = [list(group["params"]) for group in optimizer.param_groups]
        self._numbered = [parameter for group in self._whole for parameter in group]
        self._number_of = {id(parameter): n for n, parameter in enumerate(self._numbered)}
        slices: dict[int, list[Slice]] = {}
        for number, parameter in enumerate(self._numbered):
            place = self._place_of.get(id(parameter))
            if place is None:
                continue
            state = optimizer.state.pop(parameter, {})
            size = parameter.numel() if holds.is_whole else 0
            values = (
                nn.Parameter(self._memory(place)[:size])
                if size
                else nn.Parameter(parameter.new_empty(0))
            )
            one = Slice(0, size, values)
            one.state = {key: flattened(key, v, parameter) for key, v in state.items()}
            slices[number] = [one]
        for entry, dtype in (entries or {}).items():
            index, _, key = entry.partition(".")
            slices[int(index)][0].state[key] = torch.empty(0, dtype=dtype)
        whole = holds.is_whole or not self._owns
        complete = holds.is_whole
        self._use(_Cut(segments=[holds], slices=slices, lies_in_flats=whole, complete=complete))
        if not whole:
            self.deallocate()

    def drop(self) -> None:
        """Hold nothing but the common part: a whole state is to be built."""
        self.bind(self.unbind(), NOTHING)

    def unbind(self) -> torch.optim.Optimizer:
        """Return the optimizer over whole parameters, without state: a state is to be loaded."""
        assert self._optimizer is not None, "bind() comes first"
        self._optimizer.state.clear()
        for group, parameters in zip(self._optimizer.param_groups, self._whole, strict=True):
            group["params"] = list(parameters)
        return self._optimizer

    def set_gradients(
        self, part: Callable[[int, int, int], Tensor], present: Sequence[bool]
    ) -> None:
        """Set the gradients of all slices.

        Args:
            part: returns the gradients of elements [start, stop) of a bucket, given its number,
                start and stop.
            present: for each trained parameter, whether any rank has a gradient.
        """
        for number, slices in self._cut.slices.items():
            place = self._place(number)
            at = self._places[place]
            for one in slices:
                there = part(at.bucket, at.start + one.start, at.start + one.stop)
                one.values.grad = there if present[place] else None

    def check_entries(self) -> None:
        """Check that the optimizer keeps only entries that can be divided."""
        for one in self._cut.each():
            for key, value in self._state_of(one.values).items():
                check_shape(key, value, one.values)

    def release_gradients(self) -> None:
        for one in self._cut.each():
            one.values.grad = None

    # --- its form --------------------------------------------------------------------------

    def common(self) -> dict[int, dict[str, Any]]:
        """Return the optimizer state that every rank has, by number of the parameter."""
        found: dict[int, dict[str, Any]] = {}
        for number, parameter in enumerate(self._numbered):
            if number in self._cut.slices:
                first = self._state_of(self._cut.slices[number][0].values)
                state = {k: v for k, v in first.items() if not is_sharded(v)}
            else:
                state = self._state_of(parameter)
            if state:
                found[number] = state
        return found

    def entries(self) -> dict[str, torch.dtype]:
        """Return the element types of the optimizer state that is sharded, by `index.key`."""
        return {
            f"{number}.{key}": value.dtype
            for number, slices in sorted(self._cut.slices.items())
            for key, value in sorted(self._state_of(slices[0].values).items())
            if is_sharded(value)
        }

    def tensors(self) -> list[ShardedTensor]:
        """Return the sharded tensors of the state with this rank's pieces, parameters first."""
        listed = []
        for place, name in enumerate(self._names):
            listed.append(
                ShardedTensor(
                    name=f"model.{name}",
                    dtype=self._parameters[place].dtype,
                    shape=tuple(self._parameters[place].shape),
                    place=self._places[place],
                    pieces=self._parameter_pieces(place),
                )
            )
        for entry, dtype in self.entries().items():
            index, _, key = entry.partition(".")
            slices = [one for one in self._cut.slices[int(index)] if one.start < one.stop]
            listed.append(
                ShardedTensor(
                    name=f"optimizer.{entry}",
                    dtype=dtype,
                    shape=tuple(self._numbered[int(index)].shape),
                    place=self._places[self._place(int(index))],
                    pieces=tuple(
                        Piece(one.start, one.stop, self._state_of(one.values)[key])
                        for one in slices
                    ),
                )
            )
        return listed

    def _parameter_pieces(self, place: int) -> tuple[Piece, ...]:
        if not self._owns:
            memory = self._memory(place)
            return tuple(Piece(a, b, memory[a:b]) for a, b in self._ranges(place, self._cut.holds))
        number = self._number_of[id(self._parameters[place])]
        return tuple(
            Piece(one.start, one.stop, one.values.detach())
            for one in self._cut.slices[number]
            if one.start < one.stop
        )

    def buckets(self) -> list[int]:
        return [flat.numel() for flat in self._flats]

    def columns(self, bucket: int) -> dict[str, Column]:
        """Return the columns of a bucket, as far as this rank holds them, live.

        The parameters' values have the name "", optimizer state that of its key; the names are the
        same on all ranks.
        """
        found = {"": Column(dtype=self._flats[bucket].dtype, pieces=self._pieces(bucket))}
        keyed: dict[tuple[str, torch.dtype], list[tuple[int, Tensor]]] = {}
        for number, slices in self._cut.slices.items():
            at = self._places[self._place(number)]
            if at.bucket != bucket:
                continue
            for one in slices:
                for key, value in self._state_of(one.values).items():
                    if is_sharded(value):
                        pieces = keyed.setdefault((key, value.dtype), [])
                        pieces.append((at.start + one.start, value))
        for (key, dtype), pieces in sorted(keyed.items(), key=lambda item: str(item[0])):
            found[f"{key} {dtype}"] = Column(dtype=dtype, pieces=sorted(pieces, key=_in_bucket))
        return found

    @property
    def size_bytes(self) -> int:
        """Memory of the sharded optimizer state."""
        return sum(
            value.nbytes
            for one in self._cut.each()
            for value in self._state_of(one.values).values()
            if is_sharded(value)
        )

    # --- another cut -----------------------------------------------------------------------

    def stage(self, segments: Sequence[ShardSet]) -> None:
        """Let the optimizer have slices for other shards.

        What this rank holds already is copied; the rest is to be written to `columns`.
        """
        assert self._before is None, "stage() before keep() or put_back()"
        before = self._cut
        slices = {n: self._sliced(n, old, segments) for n, old in before.slices.items()}
        for one in before.each():
            one.state = self._state_of(one.values)
        self._use(_Cut(segments=segments, slices=slices, lies_in_flats=not self._owns))
        self._before = before

    def keep(self) -> None:
        """All ranks have agreed on the state with the staged slices: drop the old ones."""
        self._before = None

    def put_back(self) -> None:
        """The staged slices are void, if there are any: return to the old ones."""
        if self._before is not None:
            before, self._before = self._before, None
            self._use(before)

    def load(self, given: Received, holds: ShardSet) -> None:
        """Take over pieces of a state whose common part is loaded.

        Raises:
            CheckpointError: they are not these shards of this model.
        """
        assert self._before is None, "load() while slices are staged"
        slices = {n: self._sliced(n, old, [holds]) for n, old in self._cut.slices.items()}
        self._use(_Cut(segments=[holds], slices=slices, lies_in_flats=not self._owns))
        for one in self.tensors():
            for piece in one.pieces:
                fill(one, piece, given.get(one.name, ()))

    # --- inside ----------------------------------------------------------------------------

    def _place(self, number: int) -> int:
        """Return the index among the trained parameters of one in the optimizer."""
        return self._place_of[id(self._numbered[number])]

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        assert self._optimizer is not None, "bind() comes first"
        state: dict[str, Any] = self._optimizer.state.get(parameter, {})
        return state

    def _use(self, cut: _Cut) -> None:
        """Give the optimizer these slices and their state."""
        optimizer = self._optimizer
        assert optimizer is not None, "bind() comes first"
        for one in self._cut.each():
            optimizer.state.pop(one.values, None)
        number = 0
        for group, parameters in zip(optimizer.param_groups, self._whole, strict=True):
            group["params"] = []
            for parameter in parameters:
                slices = cut.slices.get(number)
                group["params"] += [one.values for one in slices] if slices else [parameter]
                number += 1
        for one in cut.each():
            if one.state:
                optimizer.state[one.values] = one.state
            one.state = {}
        self._cut = cut
        self._held_values = {}

    def _sliced(
        self, number: int, old: Sequence[Slice], segments: Sequence[ShardSet]
    ) -> list[Slice]:
        """Return the slices of a parameter for some shards, with what the old ones have.

        One that was there before has the same memory: its holder receives nothing of it.
        """
        place = self._place(number)
        ranges = sorted(bounds for one in segments for bounds in self._ranges(place, one))
        slices = []
        before = {(one.start, one.stop): one for one in old}
        for start, stop in ranges or [(0, 0)]:
            same = before.get((start, stop))
            if self._owns and same is not None and not self._cut.lies_in_flats:
                values = same.values
            elif self._owns:
                values = nn.Parameter(overlaid([(o, o.values) for o in old], start, stop))
            else:
                values = nn.Parameter(self._memory(place)[start:stop])
            one = Slice(start, stop, values)
            for key, value in self._state_of(old[0].values).items():
                if is_sharded(value) and same is not None:
                    one.state[key] = self._state_of(same.values)[key]
                elif is_sharded(value):
                    entries = [(other, self._state_of(other.values)[key]) for other in old]
                    one.state[key] = overlaid(entries, start, stop)
                else:
                    one.state[key] = copied(value)
            slices.append(one)
        return slices

    def _ranges(self, place: int, holds: ShardSet) -> list[tuple[int, int]]:
        """Return the element ranges of a flattened parameter that a set of shards stands for."""
        at = self._places[place]
        bounds = [
            (max(a, at.start) - at.start, min(b, at.stop) - at.start)
            for a, b in holds.ranges(self._flats[at.bucket].numel())
        ]
        return [(a, b) for a, b in bounds if a < b]

    def _memory(self, place: int) -> Tensor:
        at = self._places[place]
        return self._flats[at.bucket][at.start : at.stop]


def _in_bucket(piece: tuple[int, Tensor]) -> tuple[int, int]:
    """The order of pieces of a bucket; empty ones come first."""
    return piece[0], piece[1].numel()
