"""A moving average of the weights (EMA): `train.ema_decay` of the job file.

After every update each average moves towards its parameter; after the first it is the parameter, as
in torch.optim.swa_utils.AveragedModel.  Averages are float32, or float64 where the parameter is,
and cover what is trained: running buffers are averages already, and the model's own count. Every
replica keeps them as a part of the state (`dtd.train.state.tensors`); they change with a commit
only, so a redone step moves them once.  Evaluations are of the averages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from dtd.errors import CheckpointError
from dtd.train.bulk import copy_into
from dtd.train.record import GotOn, nobody
from dtd.train.state.weights import model_tensors


class Averages:
    """The averages of one model's trained parameters.

    Args:
        model: whose names they get.
        parameters: those that are trained.
        decay: what stays of an average in one update.

    Attributes:
        named: the averages by name, as the model calls its parameters.
    """

    def __init__(
        self, model: nn.Module, parameters: Sequence[nn.Parameter], *, decay: float
    ) -> None:
        self._parameters = list(parameters)
        self._weight = 1.0 - decay
        names = {tensor.data_ptr(): name for name, tensor in model_tensors(model).items()}
        self.named: dict[str, Tensor] = {}
        for parameter in self._parameters:
            wide = torch.promote_types(parameter.dtype, torch.float32)
            self.named[names[parameter.data_ptr()]] = parameter.detach().to(wide, copy=True)

    def begin(self) -> None:
        """The weights are new: no average of others is left."""
        self.update(first=True)

    def update(self, *, first: bool) -> None:
        """The parameters were updated; `first`: never before."""
        averages = list(self.named.values())
        pairs = zip(self._parameters, averages, strict=True)
        values = [parameter.detach().to(average.dtype) for parameter, average in pairs]
        if first:
            torch._foreach_copy_(averages, values)
        else:
            torch._foreach_lerp_(averages, values, self._weight)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model computes with the averages; nothing may be updated there."""
        live = [parameter.data for parameter in self._parameters]
        try:
            for parameter, average in zip(self._parameters, self.named.values(), strict=True):
                parameter.data = average.to(parameter.dtype)
            yield
        finally:
            for parameter, value in zip(self._parameters, live, strict=True):
                parameter.data = value

    def load(self, given: Mapping[str, Tensor], got_on: GotOn = nobody) -> None:
        """Go on with another replica's averages; where there are none, begin with the weights.

        Raises:
            CheckpointError: they are of another model.
        """
        if not given:
            self.begin()
            return
        if given.keys() != self.named.keys() or any(
            given[name].shape != average.shape for name, average in self.named.items()
        ):
            raise CheckpointError(
                "the averages of the state's weights are of another model",
                remedy="use the same [task] table",
            )
        for name, average in self.named.items():
            copy_into(average, given[name], got_on)
