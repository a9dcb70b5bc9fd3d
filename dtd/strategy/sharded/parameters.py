"""The memory of the parameters: in flat buckets, which ranks gather when they are needed.

In stages 1 and 2 (`FlatParameters`) they are gathered at the beginning of a step.

A rank updates only the parts of the parameters that it holds (`dtd.strategy.sharded.state`).  The
rest of its memory is a cache, which is one update behind until the all-gather of the next step has
refreshed it.  Forward need not wait for all of it: a module waits for the buckets with its own
parameters, in a hook before its forward and whenever one of its parameters is read as an attribute.
So a model may also use the parameters of its submodules directly, tied weights for example.  One
that reaches them in another way (`DirectUses`), or is compiled, waits for all of them before its
forward.  Buckets are gathered in the order of forward, the reverse of the gradients' order.

As in ZeRO (Rajbhandari et al. 2020, section 5.2: each process gathers the updated parameters at the
end of a step); here at the beginning of the next one, where forward hides it.

In stage 3 (`GatheredParameters`) they have memory only while they are needed: the storage of a
bucket is given memory and released by `resize_`; tensors that autograd has saved refer to the same
storage, and find the same values there when it is filled again.  As in PyTorch FSDP (Zhao et al.
2023).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dtd.exchange.api import BucketMemory
from dtd.exchange.schedule.buckets import BucketPlan
from dtd.exchange.schedule.chunks import Operation
from dtd.strategy.buckets import bucket_of_each
from dtd.strategy.sharded.uses import (
    BucketOf,
    DirectUses,
    FormerMemory,
    Gates,
    bucket_finder,
    is_compiled,
)
from dtd.strategy.wire_memory import bucket_memory


class FlatParameters:
    """The memory of the trained parameters of a model, which become views of it.

    Attributes:
        waited_s: time for which `wait` and users of parameters have been blocked so far.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        plan: BucketPlan,
        model: nn.Module,
        *,
        mirrors: int = 0,
    ) -> None:
        self.waited_s = 0.0
        self._former = FormerMemory(parameters)
        self._names = [shape.name for shape in plan.parameters]
        self._bucket_of = {
            id(parameter): bucket
            for parameter, bucket in zip(parameters, bucket_of_each(plan), strict=True)
        }
        self.flats, _ = moved_to_buckets(parameters, plan)
        self._memories = [
            bucket_memory(flat).shaped(operation=Operation.ALL_GATHER, copies=mirrors)
            for flat in reversed(self.flats)
        ]
        self._awaited: set[int] = set()
        self._asked: set[int] = set()
        self._wait: Callable[[int], None] = lambda _: None
        self._gates = Gates()
        self._waits_at_once = any(map(is_compiled, model.modules()))
        if not self._waits_at_once:
            for module in model.modules():
                self._gate(module)

    @property
    def size_bytes(self) -> int:
        return sum(flat.nbytes for flat in self.flats)

    def watch(self, passes: Sequence[Callable[[], None]]) -> None:
        """Check in some passes whether the model asks for all parameters before it uses them.

        Raises:
            TaskError: it computes with memory that is no parameter's any more.
        """
        finder, former = bucket_finder(self.flats), self._former
        for run in passes:
            if self._waits_at_once:
                return
            self._asked.clear()
            with DirectUses(finder, self._asked.__contains__, former) as uses:
                run()
            uses.check_former(self._names)
            self._waits_at_once = uses.first is not None

    def memories(self) -> list[BucketMemory]:
        """Return the all-gathers, in the order of forward; mirrored segments are here already."""
        return self._memories

    def start(self, start: Callable[[int], None], wait: Callable[[int], None]) -> None:
        """Start every all-gather; they are the first exchanges of the open step."""
        self._wait = wait
        self._awaited = set(range(len(self.flats)))
        for index in range(len(self.flats)):
            start(index)
        if self._waits_at_once:
            self.wait()

    def wait(self) -> None:
        """Block until every parameter is current."""
        for bucket in sorted(self._awaited, reverse=True):
            self._await(bucket)

    def forget(self) -> None:
        """Wait for nothing any more: the exchanges' generation or step is over."""
        self._awaited.clear()

    def close(self) -> None:
        """Remove the hooks."""
        self.forget()
        self._gates.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> FlatParameters:
        """Return the same object: the hooks of a copied model have nothing of their own here."""
        del memo
        return self

    def _gate(self, module: nn.Module) -> None:
        """Let a module wait for its own parameters."""
        own = module.parameters(recurse=False)
        buckets = {self._bucket_of[id(p)] for p in own if id(p) in self._bucket_of}
        if not buckets:
            return
        before = partial(self._before_forward, sorted(buckets, reverse=True))
        self._gates.hold(module.register_forward_pre_hook(before))
        self._gates.gate(module, self._before_use)

    def _before_forward(self, buckets: Sequence[int], module: nn.Module, given: Any) -> None:
        del module, given
        for bucket in buckets:
            self._await(bucket)

    def _before_use(self, parameter: Any) -> None:
        bucket = self._bucket_of.get(id(parameter))
        if bucket is not None:
            self._await(bucket)

    def _await(self, bucket: int) -> None:
        self._asked.add(bucket)
        if bucket in self._awaited:
            begun_s = time.perf_counter()
            self._wait(len(self.flats) - 1 - bucket)
            self._awaited.discard(bucket)
            self.waited_s += time.perf_counter() - begun_s


class GatheredParameters:
    """The memory of the trained parameters, which become views of it; full at first.

    Attributes:
        flats: a flat tensor for each bucket; without memory while it is empty.
        bucket_of: tells of which of them a tensor is a view.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], plan: BucketPlan) -> None:
        self.flats, views = moved_to_buckets(parameters, plan)
        self._views = list(zip(parameters, views, strict=True))
        self._shown = True
        self.bucket_of: BucketOf = bucket_finder(self.flats)
        self._sizes = [flat.untyped_storage().nbytes() for flat in self.flats]

    @property
    def size_bytes(self) -> int:
        return sum(flat.untyped_storage().nbytes() for flat in self.flats)

    def allocate(self, bucket: int) -> Tensor:
        """Give a bucket memory, with any contents; returns it."""
        flat = self.flats[bucket]
        storage = flat.untyped_storage()
        if storage.nbytes() != self._sizes[bucket]:
            storage.resize_(self._sizes[bucket])
        return flat

    def fill(self, bucket: int, values: Tensor) -> None:
        """Give a bucket memory and these values; autograd sees no change."""
        flat = self.allocate(bucket)
        with torch.no_grad():  # parameters count their changes apart from the flat tensor
            flat.copy_(values)

    def empty(self, bucket: int) -> None:
        """Release the memory of a bucket."""
        self.flats[bucket].untyped_storage().resize_(0)

    def show(self) -> None:
        """Let the parameters be views of the buckets again."""
        if not self._shown:
            self._shown = True
            for parameter, view in self._views:
                parameter.data = view

    def hide(self) -> None:
        """Show NaN as parameters between steps: there is no memory behind them."""
        if self._shown:
            self._shown = False
            for parameter, view in self._views:
                parameter.data = view.new_full((), math.nan).expand(view.shape)


def moved_to_buckets(
    parameters: Sequence[nn.Parameter], plan: BucketPlan
) -> tuple[list[Tensor], list[Tensor]]:
    """Make parameters views of flat tensors; returns these, and the views.

    Bucket by bucket, so that there is never memory for all parameters twice.
    """
    flats: list[Tensor] = []
    views = [parameter.detach() for parameter in parameters]
    for bucket in plan.buckets:
        flats.append(views[bucket.places[0].parameter].new_empty(bucket.elements))
        for place in bucket.places:
            parameter = parameters[place.parameter]
            view = flats[-1][place.start : place.stop].view(parameter.shape)
            view.copy_(parameter.detach())
            parameter.data = views[place.parameter] = view
    return flats, views
