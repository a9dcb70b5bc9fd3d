"""The character model: its text and its transformer."""

from __future__ import annotations

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


def test_a_real_text_is_read(shakespeare: Path) -> None:
    task = CharGpt(text=str(shakespeare), layers=1, heads=1, width=8, context=64)
    inputs, _ = task.eval_dataset().fetch([5], epoch=0, seed=0)
    assert task.build_model()(inputs).shape == (1, 64, 65)


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
