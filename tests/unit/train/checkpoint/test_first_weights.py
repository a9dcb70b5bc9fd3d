"""Weights that a job begins with: taken by name, and what does not fit is named or left out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from dtd.errors import CheckpointError
from dtd.train.checkpoint.first_weights import FirstWeights, take_weights
from dtd.train.state.tensors import MODEL


class Told:
    """What the operator hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def warning(self, event: str, message: str) -> None:
        self.heard.append((event, message))


def net(width: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, width), nn.Linear(width, 1))


def replica_of(model: nn.Module) -> Any:
    return SimpleNamespace(model=model, averages=None)


def given(model: nn.Module) -> dict[str, Tensor]:
    return {MODEL + name: value.clone() for name, value in model.state_dict().items()}


def take(model: nn.Module, tensors: dict[str, Tensor], *, strict: bool = True) -> Told:
    told = Told()
    reporter: Any = told
    take_weights(replica_of(model), tensors, source="a-1", strict=strict, reporter=reporter)
    return told


def test_all_that_fits_is_taken_whatever_its_number_type() -> None:
    source, model = net(), net()
    tensors = {name: value.half() for name, value in given(source).items()}
    assert take(model, {**tensors, "optimizer.0.step": torch.ones(1)}).heard == []
    for name, value in model.state_dict().items():
        assert torch.equal(value, source.state_dict()[name].half().float())


def test_everything_that_does_not_fit_is_named_and_nothing_is_taken() -> None:
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tensors = given(net(width=4))
    tensors[f"{MODEL}head.weight"] = tensors.pop(f"{MODEL}1.bias")
    with pytest.raises(CheckpointError) as caught:
        take(model, tensors)
    for words in (
        "the weights of a-1 do not fit",
        "0.weight is (4, 2) there and (3, 2) in the model",
        "head.weight is only in a-1",
        "1.bias is only in the model",
    ):
        assert words in caught.value.message
    assert "--no-strict" in caught.value.remedy
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_what_fits_can_be_taken_alone() -> None:
    source, model = net(), net()
    tensors = given(source)
    tensors[f"{MODEL}1.weight"] = torch.zeros(5, 3)
    ((event, message),) = take(model, tensors, strict=False).heard
    assert event == "weights_left_out"
    assert message.startswith("3 of 4 weights are taken from a-1; left out: 1.weight is (5, 3)")
    assert torch.equal(model.state_dict()["0.weight"], source.state_dict()["0.weight"])
    with pytest.raises(CheckpointError, match="do not fit"):
        take(model, {f"{MODEL}other": torch.zeros(1)}, strict=False)


def test_tied_weights_fit_under_any_of_their_names() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    model["b"].weight = model["a"].weight
    value = torch.full((2, 2), 7.0)
    take(model, {f"{MODEL}b.weight": value})
    assert torch.equal(model["a"].weight, value)
    take(model, {f"{MODEL}a.weight": value * 2, f"{MODEL}b.weight": value * 2})
    assert torch.equal(model["b"].weight, value * 2)


def test_a_file(tmp_path: Path) -> None:
    source, model, told = net(), net(), Told()
    reporter: Any = told
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(source.state_dict(), path)
    FirstWeights(path, strict=True, reporter=reporter).give(replica_of(model))
    assert torch.equal(model.state_dict()["0.weight"], source.state_dict()["0.weight"])
    path.write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match="cannot be read"):
        FirstWeights(path, strict=True, reporter=reporter).give(replica_of(model))
