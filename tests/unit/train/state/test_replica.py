"""A replica as it is built."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.errors import TaskError
from dtd.job import parse_job
from dtd.train.state.replica import build_model, move_weights

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


# --- weights that move ----------------------------------------------------------------------------


class Tied(nn.Module):
    """A layer under two names, a running buffer, and two parameters in one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        both = torch.randn(8)
        self.upper, self.lower = nn.Parameter(both[:4]), nn.Parameter(both[4:])


def test_weights_move_and_are_never_there_twice() -> None:
    model, fresh = Tied(), Tied()
    expected = {name: value.clone() for name, value in fresh.state_dict().items()}
    move_weights(fresh, model)
    found = model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert model.second.weight is model.first.weight
    left = {p.untyped_storage().nbytes() for n, p in fresh.named_parameters() if "er" not in n}
    assert left == {0}
