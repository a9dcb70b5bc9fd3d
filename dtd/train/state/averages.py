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

from dtd.checkpoint.format import Progress, no_progress
from dtd.errors import CheckpointError
from dtd.train.bulk import copy_into
from dtd.train.state.weights import model_tensors


class Averages:
    """The averages of one model's trained parameters.

    Args:
        model: provides the names.
        parameters: the trained parameters.
        decay: weight of the old average in one update.

    Attributes:
        named: the averages by the name of their parameter in the model.
    """

    def __init__(
        self, model: nn.Module, parameters: Sequence[nn.Parameter], *, decay: float
    ) -> None:
        self._parameters = list(parameters)
        self._decay, self._weight = decay, 1.0 - decay
        names = {tensor.data_ptr(): name for name, tensor in model_tensors(model).items()}
        self.named: dict[str, Tensor] = {}
        for parameter in self._parameters:
            wide = torch.promote_types(parameter.dtype, torch.float32)
            self.named[names[parameter.data_ptr()]] = parameter.detach().to(wide, copy=True)

    def begin(self) -> None:
        """Restart the averages from the weights, which are new."""
        self.update(first=True)

    def update(self, *, first: bool, steps: int = 1) -> None:
        """Update the averages after an update of the parameters.

        Args:
            first: whether this is the first update.
            steps: number of steps that the update covers; the decay is applied once for each.
        """
        averages = list(self.named.values())
        pairs = zip(self._parameters, averages, strict=True)
        values = [parameter.detach().to(average.dtype) for parameter, average in pairs]
        if first:
            torch._foreach_copy_(averages, values)
        else:
            weight = self._weight if steps == 1 else 1.0 - self._decay**steps
            torch._foreach_lerp_(averages, values, weight)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Use the averages as the model's weights in this context; no update may be made in it."""
        live = [parameter.data for parameter in self._parameters]
        try:
            for parameter, average in zip(self._parameters, self.named.values(), strict=True):
                parameter.data = average.to(parameter.dtype)
            yield
        finally:
            for parameter, value in zip(self._parameters, live, strict=True):
                parameter.data = value

    def load(self, given: Mapping[str, Tensor], progress: Progress = no_progress) -> None:
        """Continue with another replica's averages; if there are none, start from the weights.

        Raises:
            CheckpointError: they belong to another model.
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
            copy_into(average, given[name], progress)
