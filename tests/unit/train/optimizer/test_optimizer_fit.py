"""What differs between an optimizer and a saved state is named, with both values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.errors import CheckpointError
from dtd.train.state.load import check_entries, check_groups, own_numbers

OURS = ("params", "foreach", "fused")


def groups(optimizer: torch.optim.Optimizer) -> list[dict]:
    return list(optimizer.state_dict()["param_groups"])


@pytest.fixture
def parameters() -> list[nn.Parameter]:
    return list(nn.Linear(3, 4).parameters())


def test_equal_settings_fit_whatever_their_values(parameters: list[nn.Parameter]) -> None:
    one, other = torch.optim.Adam(parameters, lr=0.1), torch.optim.Adam(parameters, lr=0.2)
    check_groups(groups(one), groups(other), ours=OURS)


def test_another_optimizer_is_told_by_its_settings(parameters: list[nn.Parameter]) -> None:
    adam, sgd = torch.optim.Adam(parameters), torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    with pytest.raises(CheckpointError) as caught:
        check_groups(groups(sgd), groups(adam), ours=OURS)
    assert "the state is of another optimizer: it has " in caught.value.message
    assert "betas = [0.9, 0.999]" in caught.value.message
    assert "amsgrad = false" in caught.value.message
    assert "it lacks momentum = 0.9" in caught.value.message
    assert "--weights-from" in caught.value.remedy


def test_another_number_of_groups(parameters: list[nn.Parameter]) -> None:
    one = torch.optim.SGD(parameters, lr=0.1)
    two = torch.optim.SGD([{"params": [p]} for p in parameters], lr=0.1)
    with pytest.raises(CheckpointError, match="has 2 parameter groups, this job's 1"):
        check_groups(groups(one), groups(two), ours=OURS)
    odd = groups(two)
    del odd[1]["momentum"]
    with pytest.raises(CheckpointError, match=r"in group 1: it lacks momentum = 0 "):
        check_groups(groups(two), odd, ours=OURS)


def test_kernels_and_names_that_an_optimizer_keeps_are_no_settings(parameters) -> None:
    named = torch.optim.SGD(zip(("w", "b"), parameters, strict=True), lr=0.1)
    ours = (*OURS, "param_names")
    check_groups(groups(torch.optim.SGD(parameters, lr=0.1)), groups(named), ours=ours)
    check_groups(groups(named), groups(torch.optim.SGD(parameters, lr=0.1)), ours=ours)


def test_parameters_are_found_by_name() -> None:
    assert own_numbers([["a", "b"], ["c"]], [["a", "b"], ["c"]]) == [0, 1, 2]
    assert own_numbers([["a", "b"], [], ["d", "c"]], [["b", "a"], [], ["c", "d"]]) == [1, 0, 3, 2]
    with pytest.raises(CheckpointError) as caught:
        own_numbers([["a", "b"], ["d"]], [["a", "c"], ["b", "d"]])
    assert caught.value.message == (
        "the state's optimizer and this job's have other parameters: c is only in the state's;"
        " b is in group 1 of the state's and in group 0 of this job's"
    )
    assert "--weights-from" in caught.value.remedy
    with pytest.raises(CheckpointError, match=r"p3 is only in this job's; and 6 more"):
        own_numbers([[f"p{number}" for number in range(10)]], [[]])


def test_entries_of_parameters(parameters: list[nn.Parameter]) -> None:
    named = list(zip(("weight", "bias"), parameters, strict=True))
    fits = {0: {"exp_avg": torch.zeros(4, 3), "step": torch.tensor(1.0)}}
    check_entries(named, fits, exact={0, 1})
    with pytest.raises(CheckpointError, match="has exp_avg of parameter 2, and this job trains 2"):
        check_entries(named, {2: {"exp_avg": 0.0}}, exact=set())
    factored = {0: {"exp_avg_sq_row": torch.zeros(4)}}
    check_entries(named, factored, exact=set())
    with pytest.raises(CheckpointError, match=r"exp_avg_sq_row of weight as \(4,\), not \(4, 3\)"):
        check_entries(named, factored, exact={0})
