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
from dtd.train.state.restore import take_weights
from dtd.train.state.tensors import MODEL


class Told:
    """The message to the operator."""

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


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.LayerNorm(2)


def test_a_file_that_keeps_one_name_of_a_tied_weight(tmp_path: Path) -> None:
    source = Tied()
    safetensors.torch.save_model(source, str(tmp_path / "w.safetensors"))
    kept = safetensors.torch.load_file(tmp_path / "w.safetensors")
    assert len(kept) == 3
    for one in ("embed.weight", "head.weight"):
        model = Tied()
        (own,) = (kept[name] for name in kept if "norm" not in name)
        rest = {MODEL + name: value for name, value in kept.items() if "norm" in name}
        assert take(model, {**rest, MODEL + one: own}).heard == []
        assert torch.equal(model.embed.weight, source.embed.weight)
        assert model.head.weight is model.embed.weight


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("prefix", ["module.", "model.", "module.model.", "_orig_mod.module."])
def test_a_prefix_of_all_names_is_taken_away_or_added(prefix: str, strict: bool) -> None:
    source, model = Tied(), Tied()
    longer = {MODEL + prefix + name: value for name, value in source.state_dict().items()}
    ((event, message),) = take(model, longer, strict=strict).heard
    shown = prefix.removeprefix("_orig_mod.")
    assert event == "weights_renamed"
    assert message == f'the names in a-1 begin with "{shown}", which the model\'s do not'
    assert torch.equal(model.embed.weight, source.embed.weight)
    outer: Any = Tied()
    for name in reversed(prefix.rstrip(".").split(".")):
        outer = nn.ModuleDict({name: outer})
    ((_event, message),) = take(outer, given(source), strict=strict).heard
    assert message == f'the model\'s names begin with "{shown}", which those in a-1 do not'
    outer.requires_grad_(requires_grad=False)
    assert all(map(torch.equal, outer.parameters(), source.parameters()))
