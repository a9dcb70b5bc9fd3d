"""A task that compares its model with copies of it in a callback."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from spoilt_task import FEATURES, Plain
from torch import nn

from dtd.train.record import Moment


class Scripting(Plain):
    def build_model(self) -> nn.Module:
        self._model = super().build_model()
        return self._model

    def on_step(self, at: Moment) -> None:
        """Script and copy the model."""
        x = torch.arange(FEATURES) / FEATURES
        with warnings.catch_warnings(action="ignore"):  # scripting is deprecated
            scripted: Any = torch.jit.script(self._model)
        for other in (scripted, copy.deepcopy(self._model)):
            if not torch.equal(other(x), self._model(x)):
                raise ValueError(f"a copy computes something else after step {at.step}")
