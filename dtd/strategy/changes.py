"""The change of a rank's weights in its local steps, in flat buckets to be averaged.

At the start of a round, `remember` saves the common weights as anchors.  After the local steps,
`hand_over` writes the changes (anchor - weight) into the buckets, multiplied by the rank's fraction
of the rows, so that the sum over the ranks is the mean.  `put_back` restores the weights from the
anchors, so memory holds the job's state except during the local steps.  Buckets are encoded and
sent like those of gradients (`dtd.strategy.staging`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dtd.exchange.api import BucketMemory
from dtd.exchange.ring.buckets import BucketPlan
from dtd.strategy.codec.api import Codec, World
from dtd.strategy.codec.local_state import LocalState
from dtd.strategy.gradients import layouts_of, staging_of
from dtd.strategy.staging import Received, StartBucket, WaitForBucket


class Changes:
    """The changes of one model's trained parameters.

    Args:
        parameters: the trained parameters, in the plan's order.
        plan: layout of their changes in buckets.
        device: device of the parameters.
        codec: encodes the changes; None sends them unchanged.

    Attributes:
        anchors: the weights at the start of the round, one tensor for each parameter.
        means: once `wait` returns, the mean change of each parameter.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        plan: BucketPlan,
        device: torch.device,
        codec: Codec | None,
    ) -> None:
        self._parameters: list[Tensor] = list(parameters)
        self._plan = plan
        self._staging = staging_of(layouts_of(list(parameters), plan), device, codec)
        self.anchors = [torch.empty_like(parameter) for parameter in self._parameters]
        self.means: list[Tensor] = [torch.empty(0)] * len(self._parameters)
        for bucket, flat in zip(plan.buckets, self._staging.flats, strict=True):
            for place in bucket.places:
                shape = self._parameters[place.parameter].shape
                self.means[place.parameter] = flat[place.start : place.stop].view(shape)
        self._received = Received(self._staging)

    @property
    def size_bytes(self) -> int:
        """Memory of buckets and anchors on the device."""
        return self._staging.size_bytes + sum(anchor.nbytes for anchor in self.anchors)

    @property
    def fits(self) -> bool:
        """Whether there is a codec that applies to at least one bucket."""
        return self._staging.fits

    def regroup(self, world: World) -> None:
        """A generation begins: revoke buckets that older ones may still be reading."""
        self._staging.regroup(world)

    def exchanges(self, step: int) -> list[BucketMemory]:
        """Return the exchanges of the round that follows `step` committed steps, in order."""
        return self._staging.exchanges(step)

    def begin(self, scale: float) -> None:
        """A round begins; changes are multiplied by `scale`."""
        self._staging.begin(scale)

    def commit(self) -> None:
        """The round is committed: advance the codec's local state."""
        self._staging.commit()

    def rollback(self) -> None:
        """The round is discarded: restore the codec's local state."""
        self._staging.rollback()

    def unsent(self, step: int) -> list[LocalState]:
        """Return this rank's residuals of earlier rounds; the same number on all ranks."""
        return self._staging.unsent(step)

    def reset(self) -> None:
        """Memory holds another state: reset the codec's local state to zero."""
        self._staging.reset()

    def remember(self) -> None:
        """Save the weights, which are equal on all ranks, as anchors."""
        with torch.no_grad():
            torch._foreach_copy_(self.anchors, self._parameters)

    def put_back(self) -> None:
        """Restore the weights that all ranks hold."""
        with torch.no_grad():
            torch._foreach_copy_(self._parameters, self.anchors)

    def hand_over(self, share: float, start: StartBucket, check: Callable[[], None]) -> None:
        """Write this rank's changes, and submit bucket by bucket.

        Args:
            share: the rank's fraction of the round's rows; if it is 0, the rank contributes zeros.
            start: submits a complete bucket.
            check: called before each bucket; an exception that it raises ends the work.
        """
        with torch.no_grad():
            for index, bucket in enumerate(self._plan.buckets):
                check()
                for place in bucket.places:
                    change = self.means[place.parameter]
                    if share:
                        anchor = self.anchors[place.parameter]
                        torch.sub(anchor, self._parameters[place.parameter], out=change)
                        change.mul_(share)
                    else:
                        change.zero_()
                self._staging.send(index, start)

    def wait(self, wait: WaitForBucket) -> None:
        """Block until every bucket holds the mean change.

        The norm of each bucket is computed while the next one is still being exchanged.
        """
        self._received.wait(wait)

    def norm(self) -> float:
        """Global norm of the mean change; not finite if any element of it is not."""
        return self._received.norm()

    def revoke(self) -> None:
        """The buckets are about to change: invalidate any concurrent read by a neighbour."""
        self._staging.revoke()

    def close(self) -> None:
        """Stop all threads."""
        self._staging.close()
