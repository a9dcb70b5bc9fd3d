"""A script whose loop does something wrong on the last of its ranks.

Arguments: the mistake, and a file that the first process to come makes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import dtd

AT: Final = 3
"""Committed steps before the wrong one."""


class Loop:
    """A right loop, and what may be wrong in it."""

    def __init__(self, mistake: str, *, only: bool) -> None:
        self.mistake, self.only = mistake, only
        self.points = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
        self.model: Any = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.run: Any = None

    def rows(self, count: int = 64) -> Any:
        return TensorDataset(self.points[:count], (self.points.sum(1) > 0).long()[:count])

    def train(self, *, rows: Any = None, batch: int = 16, steps: int = 8) -> None:
        with dtd.join(self.model, self.optimizer) as self.run:
            for x, y in self.run.batches(rows or self.rows(), global_batch_size=batch, steps=steps):
                wrong = STEPS.get(self.mistake, right)
                at = self.run.step_number == AT and self.run.rank == self.run.world_size - 1
                if (wrong if at else right)(self, x, y) == "leave":
                    break

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y)


def right(loop: Loop, x: Tensor, y: Tensor) -> str:
    loop.loss(x, y).backward()
    loop.optimizer.step()
    return ""


def no_backward(loop: Loop, x: Tensor, y: Tensor) -> None:
    loop.loss(x, y)
    loop.optimizer.step()


def no_step(loop: Loop, x: Tensor, y: Tensor) -> None:
    loop.loss(x, y).backward()


def neither(loop: Loop, x: Tensor, y: Tensor) -> None:
    loop.loss(x, y)


def two_steps(loop: Loop, x: Tensor, y: Tensor) -> None:
    right(loop, x, y)
    loop.optimizer.step()


def two_backward(loop: Loop, x: Tensor, y: Tensor) -> None:
    loop.loss(x, y).backward()
    right(loop, x, y)


def leave(loop: Loop, x: Tensor, y: Tensor) -> str:
    right(loop, x, y)
    return "leave"


def fail(loop: Loop, x: Tensor, y: Tensor) -> None:
    del loop, x, y
    raise ZeroDivisionError("a mistake of the script")


def leave_script(loop: Loop, x: Tensor, y: Tensor) -> None:
    del loop, x, y
    sys.exit(3)


def new_layer(loop: Loop, x: Tensor, y: Tensor) -> None:
    right(loop, x, y)
    loop.model.append(nn.Linear(2, 2))


def new_group(loop: Loop, x: Tensor, y: Tensor) -> None:
    right(loop, x, y)
    loop.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def sum_of_losses(loop: Loop, x: Tensor, y: Tensor) -> None:
    F.cross_entropy(loop.model(x), y, reduction="sum").backward()
    loop.optimizer.step()


def no_mean(loop: Loop, x: Tensor, y: Tensor) -> None:
    F.cross_entropy(loop.model(x), y, reduction="none").backward()


def no_graph(loop: Loop, x: Tensor, y: Tensor) -> None:
    with torch.no_grad():
        loss = loop.loss(x, y)
    loss.backward()


@torch.no_grad()
def halve(loop: Loop) -> None:
    for parameter in loop.model.parameters():
        parameter.mul_(0.5)


def change_before(loop: Loop, x: Tensor, y: Tensor) -> None:
    halve(loop)
    right(loop, x, y)


def change_between(loop: Loop, x: Tensor, y: Tensor) -> None:
    loop.loss(x, y).backward()
    halve(loop)
    loop.optimizer.step()


def change_after(loop: Loop, x: Tensor, y: Tensor) -> None:
    right(loop, x, y)
    halve(loop)


def clip_on_one(loop: Loop, x: Tensor, y: Tensor) -> None:
    loop.loss(x, y).backward()
    nn.utils.clip_grad_norm_(loop.model.parameters(), 1e-3)
    loop.optimizer.step()


def rate_on_one(loop: Loop, x: Tensor, y: Tensor) -> None:
    right(loop, x, y)
    loop.optimizer.param_groups[0]["lr"] = 1.0


STEPS: Final[Mapping[str, Callable[[Loop, Tensor, Tensor], Any]]] = {
    one.__name__: one
    for one in (
        *(no_backward, no_step, neither, two_steps, two_backward, leave, fail, leave_script),
        *(new_layer, new_group, sum_of_losses, no_mean, no_graph),
        *(change_before, change_between, change_after, clip_on_one, rate_on_one),
    )
}


def own_loader(loop: Loop) -> None:
    with dtd.join(loop.model, loop.optimizer):
        for x, y in DataLoader(loop.rows(), batch_size=16):
            right(loop, x, y)


def loader_as_rows(loop: Loop) -> None:
    loop.train(rows=DataLoader(loop.rows(), batch_size=16))


def fewer_rows(loop: Loop) -> None:
    loop.train(rows=loop.rows(63 if loop.only else 64))


def other_batch(loop: Loop) -> None:
    loop.train(batch=8 if loop.only else 16)


def other_steps(loop: Loop) -> None:
    loop.train(steps=9 if loop.only else 8)


def other_model(loop: Loop) -> None:
    if loop.only:
        loop.model = nn.Sequential(nn.Linear(8, 17), nn.Tanh(), nn.Linear(17, 2))
        loop.optimizer = torch.optim.AdamW(loop.model.parameters(), lr=0.01)
    loop.train()


def other_optimizer(loop: Loop) -> None:
    if loop.only:
        loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.01)  # type: ignore[assignment]
    loop.train()


def other_rate(loop: Loop) -> None:
    if loop.only:
        loop.optimizer.param_groups[0]["lr"] = 0.5
    loop.train()


def foreign_optimizer(loop: Loop) -> None:
    loop.optimizer = torch.optim.AdamW(nn.Linear(8, 2).parameters())
    loop.train()


def meta_model(loop: Loop) -> None:
    loop.model.to("meta")
    loop.train()


def lazy_model(loop: Loop) -> None:
    loop.model = nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.Linear(16, 2))
    loop.optimizer = torch.optim.AdamW(loop.model.parameters())
    loop.train()


def join_twice(loop: Loop) -> None:
    with dtd.join(loop.model, loop.optimizer):
        loop.train()


def wrong_metrics(loop: Loop) -> None:
    with dtd.join(loop.model, loop.optimizer) as run:
        run.evaluate(loop.rows(), lambda model, batch: {"loss": loop.loss(*batch)})
        for x, y in run.batches(loop.rows(), global_batch_size=16, steps=8):
            right(loop, x, y)


BEFORE: Final[Mapping[str, Callable[[Loop], None]]] = {
    one.__name__: one
    for one in (
        *(own_loader, loader_as_rows, fewer_rows, other_batch, other_steps, other_model),
        *(other_optimizer, other_rate, foreign_optimizer, meta_model, lazy_model, join_twice),
        *(wrong_metrics,),
    )
}


def main() -> None:
    """Train, and make the mistake."""
    mistake, first = sys.argv[1], Path(sys.argv[2])
    try:
        first.touch(exist_ok=False)
        only = True
    except FileExistsError:
        only = False
    BEFORE.get(mistake, Loop.train)(Loop(mistake, only=only))


if __name__ == "__main__":
    main()
