"""The units of a model: the modules whose parameters are gathered together in stage 3.

The rule, which gives the same units on every worker: a module whose trained parameters fit into one
bucket (`sync.bucket_mib`), or whose submodules have none, is a unit.  A larger one is divided: the
parameters of its own are a unit, and the same rule applies to each of its submodules.  What is only
a list of modules (`nn.ModuleList`) is always divided.  Frozen parameters belong to no unit.  Tied
parameters belong to the unit that comes first; where another one uses them, that one is gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from dtd.errors import TaskError
from dtd.exchange.ring.buckets import BucketLayout, BucketPlan, ParameterShape, Place, plan_buckets

_COMPILED = ("OptimizedModule", "ScriptModule", "RecursiveScriptModule")


def is_compiled(module: nn.Module) -> bool:
    """Whether a module's code is compiled, and reads parameters by ways of its own."""
    return type(module).__name__ in _COMPILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One unit.

    Attributes:
        module: while its forward runs, the parameters are needed.
        parameters: indices among the trained parameters.
    """

    module: nn.Module
    parameters: tuple[int, ...]


def units_of(model: nn.Module, trained: Sequence[nn.Parameter], *, bucket_bytes: int) -> list[Unit]:
    """Divide a model.

    Args:
        model: the model.
        trained: its trained parameters, in the order of the model.
        bucket_bytes: size of a bucket.

    Raises:
        TaskError: a part of the model is compiled.
    """
    for name, module in model.named_modules():
        if is_compiled(module):
            raise TaskError(
                f"strategy.stage = 3 cannot gather the parameters of {name or 'the model'}: it is"
                " compiled",
                remedy="return it from build_model() without torch.compile or TorchScript, or set"
                " strategy.stage = 2",
            )
    left = {id(parameter): index for index, parameter in enumerate(trained)}
    units: list[Unit] = []

    def add(module: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        indices = tuple(left.pop(id(p)) for p in parameters if id(p) in left)
        if indices:
            units.append(Unit(module=module, parameters=indices))

    def visit(module: nn.Module) -> None:
        own = [p for p in module.parameters(recurse=False) if id(p) in left]
        everything = [p for p in module.parameters() if id(p) in left]
        size_bytes = sum(p.nbytes for p in everything)
        runs = type(module).forward is not nn.Module.forward
        if runs and (size_bytes <= bucket_bytes or len(own) == len(everything)):
            add(module, everything)
            return
        add(module, own)
        for child in module.children():
            visit(child)

    visit(model)
    return units


def plan_units(
    shapes: Sequence[ParameterShape], units: Sequence[Unit], *, bucket_bytes: int
) -> tuple[BucketPlan, list[int]]:
    """Pack the parameters of each unit into buckets, in the order in which backward needs them.

    Returns:
        The plan, and the unit of each bucket.
    """
    buckets: list[BucketLayout] = []
    unit_of: list[int] = []
    for number, unit in reversed(list(enumerate(units))):
        local = plan_buckets(
            [shapes[index] for index in unit.parameters],
            bucket_bytes=bucket_bytes,
            first_bucket_bytes=bucket_bytes,
        )
        for bucket in local.buckets:
            places = tuple(
                Place(parameter=unit.parameters[at.parameter], start=at.start, stop=at.stop)
                for at in bucket.places
            )
            buckets.append(
                BucketLayout(dtype=bucket.dtype, item_bytes=bucket.item_bytes, places=places)
            )
            unit_of.append(number)
    return BucketPlan(parameters=tuple(shapes), buckets=tuple(buckets)), unit_of
