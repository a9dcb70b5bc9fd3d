"""The character model: its text and its transformer."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from dtd.errors import TaskError
from dtd.tasks.chargpt import CharGpt, Transformer

SMALL = {"layers": 1, "heads": 2, "width": 32, "context": 16}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("abcdefg" * 150, encoding="utf-8")  # 945 to train on, 105 held out
    return path


def test_windows_follow_each_other_and_targets_are_one_ahead(text: Path) -> None:
    task = CharGpt(text=str(text), **SMALL)
    train, held_out = task.train_dataset(), task.eval_dataset()
    assert (len(train), len(held_out)) == (944 // 16, 104 // 16)
    inputs, targets = train.fetch(list(range(len(train))), epoch=0, seed=0)
    expected = torch.arange(len(train) * 16) % 7
    assert torch.equal(inputs.flatten(), expected)
    assert torch.equal(targets.flatten(), (expected + 1) % 7)
    assert torch.equal(train[3][1], targets[3])
    first_held_out, _ = held_out[0]
    assert first_held_out[0] == 945 % 7


def test_it_learns_the_text(text: Path) -> None:
    torch.manual_seed(0)
    task = CharGpt(text=str(text), **SMALL)
    model, train, held_out = task.build_model(), task.train_dataset(), task.eval_dataset()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = task.loss(model, train.fetch([0], epoch=0, seed=0))
    assert abs(start.item() - math.log(7)) < 0.3
    for _ in range(40):
        optimizer.zero_grad()
        task.loss(model, train.fetch(list(range(8)), epoch=0, seed=0)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    metrics = task.metrics(model.eval(), held_out.fetch([0, 1], epoch=0, seed=0))
    assert metrics["loss"][1] == metrics["accuracy"][1] == 32
    assert float(metrics["accuracy"][0]) >= 30


def test_a_real_text_is_read(shakespeare: Path) -> None:
    task = CharGpt(text=str(shakespeare), layers=1, heads=1, width=8, context=64)
    inputs, _ = task.eval_dataset().fetch([5], epoch=0, seed=0)
    assert task.build_model()(inputs).shape == (1, 64, 65)


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"none\.txt cannot be read: No such file"):
        CharGpt(text=str(tmp_path / "none.txt"))


def test_a_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"caf\xe9" * 1000)
    with pytest.raises(TaskError, match="not UTF-8 at byte 3"):
        CharGpt(text=str(path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context": 512}, "too short"),
        ({"width": 30, "heads": 4}, "width 30 is not a multiple of heads 4"),
        ({"dropout": 1.0}, "dropout must be a number from 0"),
        ({"dropout": "0.1"}, "dropout must be a number from 0"),
        ({"layers": 0}, "layers must be a whole number"),
    ],
)
def test_impossible_arguments_are_refused(
    text: Path, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        CharGpt(text=str(text), **{**SMALL, **arguments})  # type: ignore[arg-type]


def small(dropout: float = 0.0) -> Transformer:
    torch.manual_seed(0)
    return Transformer(vocabulary=11, context=16, layers=2, heads=2, width=8, dropout=dropout)


def test_a_place_sees_only_what_came_before() -> None:
    model = small().eval()
    tokens = torch.randint(0, 11, (1, 16))
    changed = tokens.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 11
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9:], after[:, 9:])


def test_embedding_and_head_are_one_parameter() -> None:
    model = small()
    assert model.head.weight is model.characters.weight
    names = [name for name, _ in model.named_parameters()]
    assert "head.weight" not in names
    model(torch.zeros(1, 4, dtype=torch.int64)).square().sum().backward()
    gradient = model.characters.weight.grad
    assert gradient is not None
    assert (gradient.abs().sum(dim=1) > 0).all()  # also rows of characters that did not occur


def test_dropout_acts_in_training_only() -> None:
    model = small(dropout=0.5)
    tokens = torch.zeros(1, 16, dtype=torch.int64)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
