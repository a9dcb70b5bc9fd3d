"""DiLoCo: local steps, and an outer optimizer that uses their mean change as its gradient.

A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models"
(arXiv:2311.08105).  Workers take H inner steps (AdamW in the paper) as in
`dtd.strategy.local_sgd`; the mean change d of a round is then the "outer gradient" of SGD with
Nesterov's momentum, as in torch.optim.SGD(nesterov=True):

    v <- m v + d                 m: outer momentum, 0.9 in the paper
    x <- x - a (d + m v)         a: outer learning rate, 0.7 in the paper

The result is not the mean of the ranks' weights, so BatchNorm's statistics are measured for it; see
`dtd.strategy.local_sgd`.  v is shared state: equal on all ranks, part of digests and checkpoints,
and sent to joining workers.  With a = 1 and m = 0 this is local SGD.

`StreamingDiloco` exchanges one fragment of the model at a time, during the next steps.
A. Douillard et al., "Streaming DiLoCo with overlapping communication" (arXiv:2501.18512).  The
parameters are divided into F contiguous fragments in the model's order.  A round has H / F inner
steps (`dtd.strategy.local_sgd`) and exchanges one fragment, so each fragment is exchanged once in H
steps.  Its change at the start of the round is exchanged during the round's steps and applied at
the end of the round, H / F steps late:

    d_f = sum_k w_k (x_f - x_k,f)        as at the start of the round
    x_f <- outer step by d_f             Nesterov's, as above
    x_k,f <- a x_k,f + (1 - a) x_f       a: the mixing factor, 0.5 in the paper

x is the state of the job.  The difference of a rank's weights from it, its *drift* x_k - x, is
local state.  It is stored separately between rounds, so digests, checkpoints, evaluations and
joining workers use x alone.  It advances with a commit, is restored when a round is redone or
skipped, and is zero in a process that takes over a state.  A drift that is not finite makes all
ranks skip the round in which it occurs.  Drift that has not been exchanged when the job ends is not
part of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dtd.exchange.api import BucketMemory, Collective
from dtd.strategy.api import Applied, Computation, LossSum, Part, StepStats
from dtd.strategy.codec.api import Codec
from dtd.strategy.local_sgd import Changes, LocalSteps, Nesterov
from dtd.strategy.scalars import StepScalars


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """Parameters that are exchanged together."""

    places: list[int]
    changes: Changes
    outer: Nesterov


def cut(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Divide indices into `count` contiguous, non-empty groups of about equal total size."""
    groups: list[list[int]] = [[]]
    seen, total = 0, sum(sizes)
    for place, size in enumerate(sizes):
        wanted = count - len(groups)
        is_full = seen * count >= total * len(groups) or len(sizes) - place == wanted
        if groups[-1] and wanted and is_full:
            groups.append([])
        groups[-1].append(place)
        seen += size
    return groups


class StreamingDiloco(LocalSteps):
    """Rounds in which one fragment is exchanged.

    `turn` returns the number of the round that begins at a step; `mixing` is the factor a.
    """

    risk = "ranks' weights differ between exchanges, which come late; check the loss"

    def __init__(
        self,
        part: Part,
        device: torch.device,
        scalars: StepScalars,
        *,
        fragments: int,
        turn: Callable[[int], int],
        mixing: float,
        lr: float,
        momentum: float,
        codec: Callable[[], Codec] | None,
        bucket_bytes: int,
    ) -> None:
        self._fragments: list[Fragment] = []
        for places in cut([parameter.numel() for _, parameter in part.named], fragments):
            named = [part.named[place] for place in places]
            made = codec() if codec is not None else None
            own = Part(name=part.name, named=named, places=places)
            changes = Changes(own, device, made, bucket_bytes=bucket_bytes)
            outer = Nesterov(named, lr=lr, momentum=momentum)
            self._fragments.append(Fragment(places=places, changes=changes, outer=outer))
        super().__init__(part, scalars, [one.changes for one in self._fragments])
        self._active = self._fragments[0]
        self._turn, self._mixing = turn, mixing
        self._drift = [torch.zeros_like(parameter.detach()) for parameter in self._parameters]
        self._next_drift: list[Tensor] | None = None

    # --- between rounds --------------------------------------------------------------------

    @property
    def shared(self) -> Mapping[str, Tensor]:
        return {name: t for one in self._fragments for name, t in one.outer.shared.items()}

    @property
    def size_bytes(self) -> int:
        return super().size_bytes + 2 * sum(tensor.nbytes for tensor in self._drift)

    def replaced(self) -> None:
        super().replaced()
        torch._foreach_zero_(self._drift)

    # --- a round ---------------------------------------------------------------------------

    def exchanges(self, step: int, updates: Sequence[str]) -> list[BucketMemory]:
        self._active = self._fragments[self._turn(step) % len(self._fragments)]
        self._changes = self._active.changes
        return super().exchanges(step, updates)

    def begin(self, check: Callable[[], None], scale: float) -> None:
        self._next_drift = None
        super().begin(check, scale)

    def compute(self, work: Computation, ring: Collective) -> None:
        """Submit the fragment's change, then take the steps while it is being exchanged."""
        self._restore_optimizer = work.remember_optimizer()
        for one in self._fragments:
            one.changes.save()
        try:
            with torch.no_grad():
                torch._foreach_add_(list(self._parameters), self._drift)
            self._changes.submit(work.share, ring, self._check)
            sums = self._take_steps(work)
            drift = self._drifted()
        finally:
            for one in self._fragments:
                one.changes.restore()
            self.release()
        if not all(bool(torch.isfinite(tensor).all()) for tensor in drift):
            sums = LossSum(loss_sum=sums.loss_sum, weight=math.nan)
        self._next_drift = drift
        self._send_scalars(work, sums, ring)

    def _drifted(self) -> list[Tensor]:
        """Return the difference of the weights from the job's, in the parameters' order."""
        drift = list(self._drift)
        for one in self._fragments:
            for place, anchor in zip(one.places, one.changes.anchors, strict=True):
                drift[place] = self._parameters[place].detach() - anchor
        return drift

    def apply(self, work: Computation) -> StepStats:
        """Take the outer step of one fragment, and mix this rank's weights with the result."""
        changes = self._changes
        changes.buckets.revoke()
        totals, norm = self._scalars.totals(), changes.buckets.norm()
        finite = math.isfinite(norm) and math.isfinite(totals.weight)
        if finite:
            assert self._next_drift is not None, "the round is not computed"
            work.change_state(self._scalars)
            parameters = [self._parameters[place] for place in self._active.places]
            with torch.no_grad():
                self._active.outer.update(parameters, changes.means)
                for place, before in zip(self._active.places, changes.anchors, strict=True):
                    own = before + self._next_drift[place]
                    self._next_drift[place] = own.sub_(self._parameters[place]).mul_(self._mixing)
        applied = Applied(name=self._name, loss=totals.loss, norm=norm if finite else math.nan)
        return StepStats(updates=[applied], finite=finite, totals=totals)

    def commit(self) -> None:
        super().commit()
        if self._next_drift is not None:
            self._drift, self._next_drift = self._next_drift, None

    def rollback(self) -> None:
        self._next_drift = None
        super().rollback()
