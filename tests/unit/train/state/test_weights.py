"""Weights by name: compiled models, tied weights, and the lines that `dtdctl fetch` prints."""

from __future__ import annotations

import contextlib
import sys
import types

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from dtd.ctl.commands.checkpoints import loading_lines
from dtd.errors import CheckpointError
from dtd.train.state.load import load_state
from dtd.train.state.tensors import metadata, named_tensors
from dtd.train.state.weights import live_tensors, load_weights, model_tensors, plain_name

MODULE = "dtd_weights_task"


class Tied(nn.Module):
    """An embedding that is also the head, and a buffer."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, width)
        self.block = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 5, bias=False)
        self.head.weight = self.embed.weight


class HalfCompiled(nn.Module):
    """One of its layers is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.block = torch.compile(nn.Linear(4, 4), backend="eager")
        self.out = nn.Linear(4, 2)


def tied() -> nn.Module:
    return Tied()


def compiled_tied() -> nn.Module:
    return torch.compile(Tied(), backend="eager")


@pytest.fixture
def task():
    """Makes a module whose `Task` builds a model."""

    def make(build) -> None:
        module = types.ModuleType(MODULE)
        module.Task = type(
            "Task",
            (),
            {
                "build_model": lambda _self: build(),
                "train_dataset": lambda _self: [],
                "loss": lambda *_: None,
            },
        )
        sys.modules[MODULE] = module

    yield make
    sys.modules.pop(MODULE, None)


@pytest.mark.parametrize("build", [tied, compiled_tied, HalfCompiled])
def test_the_printed_lines_load_what_was_saved(task, tmp_path, build) -> None:
    task(build)
    trained = build()
    file = tmp_path / "model.safetensors"
    save_file(model_tensors(trained), file)
    found: dict[str, object] = {}
    lines = loading_lines({"job": {"task": f"{MODULE}:Task"}, "task": {}}, file)
    exec("\n".join(lines), found)
    model = found["model"]
    assert isinstance(model, nn.Module)
    for name, value in trained.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


class Various(nn.Module):
    """One layer under two names, buffers of all kinds, parametrizations old and new."""

    def __init__(self) -> None:
        super().__init__()
        self.one = self.same = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("derived", torch.ones(1), persistent=False)
        self.register_buffer("none", None)
        self.listed = nn.ParameterList([nn.Parameter(torch.ones(1))])
        self.new = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
        self.old = nn.utils.spectral_norm(nn.Linear(2, 2))
        self.attention = nn.MultiheadAttention(4, 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "build",
    [
        Various,
        lambda: checkpoint_wrapper(Various()),
        lambda: nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2)), nn.Linear(2, 2)),
        lambda: torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))),
        lambda: torch.jit.trace(nn.Linear(2, 2), torch.ones(3, 2)),
    ],
)
def test_names_tensors_and_order_are_those_of_a_usual_state_dict(build) -> None:
    model = build()
    usual = model.state_dict()
    live = {plain_name(name): tensor for name, tensor in live_tensors(model)}
    assert list(live) == list(usual)
    assert all(live[name].data_ptr() == tensor.data_ptr() for name, tensor in usual.items())


def test_states_of_compiled_models_go_into_plain_ones_and_back(make_replica) -> None:
    source, target = make_replica(), make_replica(updates=0)
    plain = {f"model.{name}": value for name, value in model_tensors(source.model).items()}
    others = {n: t for n, t in named_tensors(source).items() if not n.startswith("model.")}
    for given in (plain, {f"model._orig_mod.{name[6:]}": v for name, v in plain.items()}):
        with torch.no_grad():
            target.model.embed.weight.zero_()
        load_state(target, {**others, **given}, metadata(source))
        assert torch.equal(target.model.embed.weight, source.model.embed.weight)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda w: w.pop("embed.weight"), "another model: embed.weight is only in the model"),
        (
            lambda w: w.update(more=torch.ones(1)),
            r"another model: more is only in .*w\.safetensors",
        ),
        (
            lambda w: w.clear(),
            "embed.weight is only .* norm.bias is only in the model; .*; and 2 more",
        ),
        (
            lambda w: w.update({"block.bias": torch.ones(3)}),
            r"block.bias is \(3,\) there and \(4,\) in the model",
        ),
    ],
)
def test_weights_of_another_model_are_refused(tmp_path, change, why) -> None:
    weights = model_tensors(Tied())
    change(weights)
    file = tmp_path / "w.safetensors"
    save_file(weights, file)
    with pytest.raises(CheckpointError, match=why):
        load_weights(Tied(), file)


@pytest.mark.parametrize("given", [2.0, 3.0])
def test_extra_state_is_taken_only_as_it_is(tmp_path, make_replica, given) -> None:
    """Nothing loads it, and it stays as it is made."""

    class Fixed(nn.Linear):
        def get_extra_state(self) -> torch.Tensor:
            return torch.tensor([2.0])

        def set_extra_state(self, state: object) -> None:
            """Takes nothing."""

    target = make_replica(updates=0)
    target.model.block = Fixed(4, 4)
    weights = {**model_tensors(target.model), "block._extra_state": torch.tensor([given])}
    save_file(weights, tmp_path / "w")

    def load(loaded) -> None:
        with (
            contextlib.nullcontext()
            if given == 2.0
            else pytest.raises(CheckpointError, match="_extra_state is another one there")
        ):
            loaded()

    load(lambda: load_weights(target.model, tmp_path / "w"))
    state = {**named_tensors(target), **{f"model.{n}": w for n, w in weights.items()}}
    load(lambda: load_state(target, state, metadata(target)))
