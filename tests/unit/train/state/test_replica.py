"""A replica as it is built."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.errors import TaskError
from dtd.job import parse_job
from dtd.train.state.replica import build_model

CPU = torch.device("cpu")
SPEC = parse_job(
    '[job]\nname = "n"\ntask = "digits"\nsteps = 1\nglobal_batch_size = 2', source="test"
)


class Building:
    """A task as far as its model goes."""

    def __init__(self, model: object) -> None:
        self.model = model

    def build_model(self) -> object:
        return self.model


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)), "the layer 1"),
        (nn.SyncBatchNorm(2), "the model"),
        (
            nn.SyncBatchNorm.convert_sync_batchnorm(nn.ModuleDict({"norm": nn.BatchNorm1d(2)})),
            "the layer norm",
        ),
    ],
)
def test_batch_norm_that_nothing_synchronises_is_refused(model, what) -> None:
    with pytest.raises(TaskError, match=f"{what} is a SyncBatchNorm.*no process group") as caught:
        build_model(Building(model), SPEC, CPU, lambda: None)
    assert "GroupNorm" in caught.value.remedy
