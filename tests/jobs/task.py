"""The task of a recipe: the same methods for dtd and for plain torch."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import IterableDataset

from tests.jobs.recipe import ROWS, STEPS, Recipe

WIDTH: Final = 6
EPS: Final = 1e-3
"""Epsilon of the optimizers: rounding around zero must not become a step of full size."""
RATE: Final = 0.02

# --- rows --------------------------------------------------------------------------------------


class Rows:
    """Random inputs and targets, read row by row."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
        self.y = torch.randn(ROWS, 3, generator=generator, dtype=torch.float64)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.x[row], self.y[row]


class FetchedRows(Rows):
    """Read all at once."""

    def fetch(self, row_ids: Any, *, epoch: int, seed: int) -> tuple[Tensor, Tensor]:
        return self.x[list(row_ids)], self.y[list(row_ids)]


class DrawnRows(Rows):
    """Rows with noise from all three generators."""

    seldom = False

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(row)
        if self.seldom and row % 8 != 7:
            return x, y
        noise = torch.rand(()).item() + random.random() + np.random.random()
        return x + noise, y


class SeldomDrawnRows(DrawnRows):
    """One row in eight has noise."""

    seldom = True


class OwnGeneratorRows(Rows):
    """Noise from a generator that the dataset keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.draw = torch.Generator().manual_seed(0)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(row)
        return x + torch.rand((), generator=self.draw).item(), y


class StreamedRows(IterableDataset[Any]):
    """Rows one after another."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rows = Rows()
        return (rows[row] for row in range(ROWS))


DATASETS: Final[dict[str, Callable[[], Any]]] = {
    "fetched": FetchedRows,
    "numbered": Rows,
    "drawn": DrawnRows,
    "some drawn": SeldomDrawnRows,
    "own generator": OwnGeneratorRows,
    "stream": StreamedRows,
}

# --- layers, from rows of WIDTH to rows of WIDTH -------------------------------------------------


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv1d(1, 2, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.inner(x.unsqueeze(1))).mean(1)


class Embedding(nn.Module):
    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(5, WIDTH, sparse=sparse)

    def forward(self, x: Any) -> Any:
        return x + self.table((x[:, 0].detach().abs() * 10).long() % 5)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        return self.second(torch.tanh(self.first(x)))


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(WIDTH, dtype=torch.complex128))

    def forward(self, x: Any) -> Any:
        return (torch.fft.fft(x) * self.gain).real


class Single(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.inner(x.float())).to(x.dtype)


class Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Any) -> Any:
        return x * self.gain


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 3)

    def forward(self, x: Any) -> Any:
        return torch.sin(x)


class Branches(nn.Module):
    """A second layer that only some batches need."""

    def __init__(self) -> None:
        super().__init__()
        self.often, self.seldom = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        seldom = (x[:, :1].detach() > 1.5).to(x.dtype)
        if seldom.any():
            return self.often(x) * (1 - seldom) + self.seldom(x) * seldom
        return self.often(x)


class LateBuffer(nn.Module):
    """A buffer that the first pass registers."""

    first: Tensor

    def forward(self, x: Any) -> Any:
        if not hasattr(self, "first"):
            self.register_buffer("first", torch.ones(WIDTH, dtype=x.dtype))
        return torch.tanh(x) * self.first


class Counter(nn.Module):
    """An integer buffer that nothing depends on."""

    passes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        self.passes += 1
        return torch.tanh(x)


class Centre(nn.Module):
    """A moving mean over rows, subtracted from the next ones."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(WIDTH))

    def forward(self, x: Any) -> Any:
        out = x - self.centre
        if self.training:
            self.centre = self.centre * 0.9 + x.detach().mean(0) * 0.1
        return out


class Unsaved(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((WIDTH,), 0.5), persistent=False)

    def forward(self, x: Any) -> Any:
        return x * self.scale


class ExtraState(nn.Module):
    """A tensor outside parameters and buffers, which depends on the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(WIDTH, dtype=torch.float64)

    def forward(self, x: Any) -> Any:
        self.seen = self.seen + x.detach().sum(0)
        return torch.tanh(x)

    def get_extra_state(self) -> Tensor:
        return self.seen

    def set_extra_state(self, state: Tensor) -> None:
        self.seen = state


def _linear() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


MADE: Final[dict[str, Callable[[], nn.Module]]] = {
    "linear": _linear,
    "conv": Conv,
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "batch norm without statistics": lambda: nn.BatchNorm1d(WIDTH, track_running_stats=False),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "group norm": lambda: nn.GroupNorm(2, WIDTH),
    "embedding": Embedding,
    "sparse embedding": lambda: Embedding(sparse=True),
    "tied": Tied,
    "parametrised": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "lazy": lambda: nn.LazyLinear(WIDTH),
    "complex": Complex,
    "float32": Single,
    "dropout": lambda: nn.Dropout(0.3),
    "gain": Gain,
    "unused": Unused,
    "rows take branches": Branches,
    "late buffer": LateBuffer,
    "counter": Counter,
    "centre": Centre,
    "unsaved buffer": Unsaved,
    "extra state": ExtraState,
}


class Model(nn.Module):
    """The layers of a recipe between two linear ones."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.saved_as = recipe["state_dict"]
        self.first = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.layers = nn.ModuleList(MADE[name]() for name in recipe.layers)
        self.head = nn.Linear(WIDTH, 3)
        if recipe["step_hook"] == "teacher":
            self.teacher = copy.deepcopy(self.head).requires_grad_(requires_grad=False)
        if recipe["loss"] == "learned weights":
            self.weights = nn.Parameter(torch.zeros(2))
        self.double()
        for module in self.modules():
            if isinstance(module, Single):
                module.float()

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        state = super().state_dict(*arguments, **options)
        if self.saved_as == "leaves a parameter out":
            state.pop("head.bias", None)
        elif self.saved_as == "copies":
            state = type(state)((name, value.clone()) for name, value in state.items())
        return state


# --- the task ----------------------------------------------------------------------------------

OPTIMIZERS: Final[dict[str, Callable[..., torch.optim.Optimizer]]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True),
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr, eps=EPS),
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr=lr, eps=EPS, amsgrad=True),
    "Adadelta": lambda p, lr: torch.optim.Adadelta(p, lr=lr, eps=EPS),
    "Adagrad": lambda p, lr: torch.optim.Adagrad(p, lr=lr, eps=EPS),
    "Adamax": lambda p, lr: torch.optim.Adamax(p, lr=lr, eps=EPS),
    "ASGD": torch.optim.ASGD,
    "NAdam": lambda p, lr: torch.optim.NAdam(p, lr=lr, eps=EPS),
    "RAdam": lambda p, lr: torch.optim.RAdam(p, lr=lr, eps=EPS),
    "RMSprop": lambda p, lr: torch.optim.RMSprop(p, lr=lr, eps=EPS, centered=True),
    "Rprop": torch.optim.Rprop,
    "Adafactor": torch.optim.Adafactor,
    "LBFGS": torch.optim.LBFGS,
    "SparseAdam": lambda p, lr: torch.optim.SparseAdam(p, lr=lr, eps=EPS),
}
"""By the recipe's names, but for those of the job file and several at once."""

JOB_OPTIMIZERS: Final = {
    "job adam": {"name": "adam", "lr": RATE, "eps": EPS, "weight_decay": 0.01},
    "job sgd": {"name": "sgd", "lr": RATE, "momentum": 0.9},
}
FROZEN: Final[dict[str, tuple[str, ...]]] = {
    "nothing": (),
    "the first layer": ("first.",),
    "all but the head": ("first.", "layers."),
}
RATES: Final[dict[str, Callable[[], Any]]] = {
    "number": lambda: RATE,
    "tensor": lambda: torch.tensor(RATE, dtype=torch.float64),
    "numpy": lambda: np.float64(RATE),
}


class Task:
    """A task of dtd.

    Args:
        recipe: the task's features.
        resumed: the process is not the job's first one.
    """

    def __init__(self, recipe: Recipe, *, resumed: bool = False) -> None:
        self.recipe, self.resumed = recipe, resumed
        self.model: Any = None
        if recipe["optimizer"] == "two":
            self.build_optimizers = self._two_optimizers
        elif recipe["optimizer"] not in JOB_OPTIMIZERS:
            self.build_optimizer = self._optimizer
        if recipe["schedule"] != "none":
            self.build_schedule = self._schedule
        if recipe["collate"] != "default":
            self.collate = _left_out if recipe["collate"] == "leaves rows out" else _stacked
        if recipe["evaluation"] == "yes":
            self.eval_dataset = FetchedRows if recipe["collate"] == "default" else Rows
            if recipe["optimizer"] == "two":
                self.metrics = lambda model, batch: {"norm": (model(batch[0]).norm(), 1)}

    # --- model and rows --------------------------------------------------------------------

    def build_model(self) -> Any:
        model: Any = Model(self.recipe)
        for name, parameter in model.named_parameters():
            frozen = name.startswith(FROZEN[self.recipe["frozen"]])
            if frozen and not is_lazy(parameter):
                parameter.requires_grad = False
        self._initialise(model)
        self._hook_gradients(model)
        if self.recipe["modes"] == "all in eval":
            model.eval()
        elif self.recipe["modes"] == "a part in eval":
            model.layers.eval()
        self.model = model
        self.outside = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        return model

    def train_dataset(self) -> Any:
        rows = self.recipe["rows"]
        if rows == "fetched" and self.recipe["collate"] != "default":
            rows = "numbered"  # a dataset with fetch() makes its batches itself
        return DATASETS[rows]()

    def _initialise(self, model: Any) -> None:
        draw = {
            "numpy": lambda shape: torch.from_numpy(np.random.randn(*shape)),
            "random": lambda shape: torch.tensor(
                [[random.random() for _ in range(shape[1])] for _ in range(shape[0])],
                dtype=torch.float64,
            ),
        }.get(self.recipe["weights_by"])
        if draw is not None:
            with torch.no_grad():
                model.head.weight.copy_(draw((3, WIDTH)) / 10)

    def _hook_gradients(self, model: Any) -> None:
        weight = model.head.weight
        hook = {
            "watches": lambda grad: None,
            "doubles": lambda grad: grad * 2,
            "clamps": lambda grad: grad.clamp(-0.01, 0.01),
        }.get(self.recipe["gradient_hook"])
        if hook is not None and weight.requires_grad:
            weight.register_hook(hook)
        accumulated = {
            "watches": lambda parameter: None,
            "clears": lambda parameter: setattr(parameter, "grad", None),
        }.get(self.recipe["accumulated_hook"])
        if accumulated is not None and weight.requires_grad:
            weight.register_post_accumulate_grad_hook(accumulated)

    # --- loss ------------------------------------------------------------------------------

    def loss(self, model: Any, batch: Any, update: str = "") -> Any:
        x, y = batch
        out = model(x * self._draw())
        by_row = ((out - y) ** 2).mean(1)
        if update == "second":
            by_row = by_row + out.abs().mean(1)
        if self.recipe["reference"] != "none":
            reference = copy.deepcopy(model)
            with torch.no_grad():
                for parameter in reference.parameters():
                    parameter.mul_(0.5)
            by_row = by_row + ((out - reference(x).detach()) ** 2).mean(1)
        return self._of_rows(model, x, by_row)

    def _draw(self) -> float:
        draw = {
            "none": lambda: 1.0,
            "torch": lambda: 1.0 + torch.rand(()).item(),
            "numpy": lambda: 1.0 + float(np.random.beta(2.0, 2.0)),
            "random": lambda: 1.0 + random.random(),
        }
        return draw[self.recipe["draws"]]()

    def _of_rows(self, model: Any, x: Any, by_row: Any) -> Any:
        kind = self.recipe["loss"]
        if self.recipe["collate"] == "leaves rows out":
            sound = ~damaged(x)
            return (by_row * sound).sum(), sound.sum()
        if kind == "sum and count":
            return by_row.sum(), len(x)
        loss = by_row.mean()
        if kind == "penalty on gradients" and torch.is_grad_enabled():
            weight = next(one for one in model.parameters() if one.requires_grad)
            (gradient,) = torch.autograd.grad(
                loss, weight, create_graph=True, materialize_grads=True
            )
            # Of each row alone the penalty would not be a mean over rows; so it is linear in it.
            loss = loss + 0.1 * gradient.sum()
        elif kind == "backward inside" and torch.is_grad_enabled():
            (0.1 * loss).backward(retain_graph=True)
        elif kind.startswith("learned weights"):
            first, second = model.weights if kind == "learned weights" else self.outside
            loss = loss * torch.exp(-first) + first + second**2
        return loss

    # --- optimizer -------------------------------------------------------------------------

    def _optimizer(self, named_parameters: Any) -> torch.optim.Optimizer:
        parameters = [parameter for _, parameter in named_parameters]
        in_order = self.recipe["groups"] != "reversed"
        if self.resumed and self.recipe["resumed"] == "parameters in another order":
            in_order = not in_order
        if not in_order:
            parameters.reverse()
        if self.recipe["loss"] == "learned weights outside the model":
            parameters.append(self.outside)
        if self.recipe["optimizer"] == "SparseAdam":
            parameters = [one for one in parameters if not one.is_complex()]
        groups: Any = parameters
        if self.recipe["groups"] == "two" and self.recipe["optimizer"] != "LBFGS":
            groups = [
                {"params": [one for one in parameters if one.dim() > 1]},
                {"params": [one for one in parameters if one.dim() <= 1], "weight_decay": 0.0},
            ]
        optimizer = OPTIMIZERS[self.recipe["optimizer"]](groups, lr=RATES[self.recipe["lr"]]())
        self._hook_steps(optimizer)
        return optimizer

    def _two_optimizers(self, named_parameters: Any) -> dict[str, torch.optim.Optimizer]:
        parameters = [parameter for _, parameter in named_parameters]
        middle = max(1, len(parameters) // 2)
        return {
            "first": torch.optim.Adam(parameters[:middle], lr=RATE, eps=EPS),
            "second": torch.optim.SGD(parameters[middle:], lr=RATE, momentum=0.9),
        }

    def _hook_steps(self, optimizer: torch.optim.Optimizer) -> None:
        kind = self.recipe["step_hook"]
        if kind == "clips gradients":
            optimizer.register_step_pre_hook(_clip_gradients)
        elif kind == "teacher":
            optimizer.register_step_post_hook(lambda *_: self._teach())
        elif kind in POST_HOOKS:
            optimizer.register_step_post_hook(POST_HOOKS[kind])

    @torch.no_grad()
    def _teach(self) -> None:
        head, teacher = self.model.head.weight, self.model.teacher.weight
        teacher.lerp_(head, 0.5)
        head.add_(teacher, alpha=0.01)

    def _schedule(self, optimizer: Any, total_steps: int) -> Any:
        schedules = torch.optim.lr_scheduler
        made: dict[str, Callable[[], Any]] = {
            "lambda": lambda: schedules.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
            "one cycle": lambda: schedules.OneCycleLR(
                optimizer, max_lr=RATE, total_steps=STEPS, cycle_momentum=False
            ),
            "step": lambda: schedules.StepLR(optimizer, step_size=2, gamma=0.5),
        }
        return made[self.recipe["schedule"]]()


def _clip_gradients(optimizer: Any, *_: Any) -> None:
    for group in optimizer.param_groups:
        torch.nn.utils.clip_grad_norm_(group["params"], 0.05)


@torch.no_grad()
def _scale(optimizer: Any, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.mul_(0.99)


@torch.no_grad()
def _renormalise(optimizer: Any, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.norm() > 1:
                parameter.div_(parameter.norm())


POST_HOOKS: Final[dict[str, Callable[..., None]]] = {
    "watches": lambda *_: None,
    "scales": _scale,
    "renormalises": _renormalise,
}


def _stacked(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    x, y = zip(*rows, strict=True)
    return torch.stack(x), torch.stack(y)


def damaged(x: Tensor) -> Tensor:
    """Which rows nobody wants to learn from: one in ten."""
    damaged: Tensor = x[..., 1] > 1.3
    return damaged


def _left_out(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Without damaged rows; of nothing but such, the first one, which has no weight."""
    return _stacked([row for row in rows if not damaged(row[0])] or rows[:1])
