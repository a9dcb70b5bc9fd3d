from __future__ import annotations

import torch

from dtd.tasks.chargpt import Transformer


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
