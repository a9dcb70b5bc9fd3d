"""Weights by name: the external names of a model's parameters and buffers; and their averages.

The tensors are the modules' own, by reference: a model's `state_dict()` may be overridden or
hooked, and leave out a parameter or hold copies.  Names are those of the model as it was written:
torch.compile's wrapper adds `_orig_mod.` to names, and torch's checkpoint_wrapper a name of its
own, which are taken away here, so that a wrapped and a plain model can load each other's weights.
A tensor with several names (tied weights) counts once, under the first.
`load_weights` is for use after training: it needs no daemon.

`Averages` are a moving average of the weights (EMA), `train.ema_decay` of the job file.  After
every update each average moves towards its parameter; after the first it is the parameter, as in
torch.optim.swa_utils.AveragedModel.  They are float32, or float64 where the parameter is, and cover
what is trained: running buffers are averages already.  They change with a commit only, so a redone
step moves them once.  Evaluations are of the averages.

Tensors are copied and hashed in pieces: a large one may exceed any fixed time limit, so `progress`
is called after each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from dtd.checkpoint.format import Progress, no_progress
from dtd.errors import CheckpointError, TaskError
from dtd.strategy.wire_memory import tensor_bytes
from dtd.text.shown import listed

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Element types that states can hold, by the names that safetensors has for them."""

_WRAPPERS: Final = frozenset({"_orig_mod", "_checkpoint_wrapped_module"})
"""Under these names torch's wrappers hold the module that they wrap."""

_EXTRA_STATE: Final = "_extra_state"
MOST_NAMED: Final = 6


def plain_name(name: str) -> str:
    """A parameter's or buffer's name without what torch's wrappers add to it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """A module's own buffers that are a part of the state, by their names in the module."""
    derived = module._non_persistent_buffers_set  # noqa: SLF001 - torch has no other name
    return {
        name: buffer
        for name, buffer in module._buffers.items()  # noqa: SLF001 - one list for each call
        if buffer is not None and name not in derived
    }


def named_state_buffers(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Buffers of the model that are a part of the state, shared ones once."""
    found: dict[int, tuple[str, Tensor]] = {}
    for path, module in model.named_modules():
        for name, buffer in persistent_buffers(module).items():
            found.setdefault(id(buffer), (f"{path}.{name}" if path else name, buffer))
    return list(found.values())


def extra_states(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the results of the modules' `get_extra_state()`, under the names of a state_dict."""
    modules = ((name, one) for name, one in model.named_modules() if has_extra_state(one))
    named = ((f"{name}.{_EXTRA_STATE}" if name else _EXTRA_STATE, one) for name, one in modules)
    return [(name, _extra_state(name, one)) for name, one in named]


def has_extra_state(module: nn.Module) -> bool:
    """Whether a module defines `get_extra_state()`."""
    return type(module).get_extra_state is not nn.Module.get_extra_state


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Live parameters and persistent buffers, shared ones once, in an order of the model alone."""
    groups = named_groups(model)
    return {names[0]: tensor for names, tensor in groups}


def parameter_names(model: nn.Module) -> dict[nn.Parameter, str]:
    """Names of all parameters, frozen ones too; of one that is shared, the first."""
    names: dict[str, nn.Parameter] = {}
    for full_name, parameter in model.named_parameters():
        name = plain_name(full_name)
        names[full_name if name in names else name] = parameter
    return {parameter: name for name, parameter in names.items()}


def load_weights(model: nn.Module, *files: str | Path) -> None:
    """Give a model the weights of safetensors files, such as `dtdctl fetch` brings.

    Args:
        model: as the task builds it, compiled or not.
        files: of weights; where two hold the same name the later one counts.

    Raises:
        CheckpointError: a file cannot be read, or the weights are not those of this model.
    """
    given: dict[str, Tensor] = {}
    for file in files:
        try:
            loaded = safetensors.torch.load_file(file)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from error
        given |= {plain_name(name): tensor for name, tensor in loaded.items()}
    where = " and ".join(map(str, files))
    copies, unfit = matched(named_groups(model), given, where)
    if unfit:
        raise CheckpointError(
            f"{where} is of another model: {listed(unfit, MOST_NAMED, '; ')}",
            remedy="build the model with the job's [task] table",
        )
    with torch.no_grad():
        for tensor, value in copies:
            tensor.copy_(value)


def differs_from_fixed(name: str, given: Tensor, tensor: Tensor) -> str:
    """Describe extra state that differs from the module's; "" if none does.

    It stays as `build_model()` makes it (`dtd.train.warm_up.watch`), so nothing loads it.
    """
    fixed = name.rpartition(".")[2] == _EXTRA_STATE
    if not fixed or tensor_bytes(given.contiguous()) == tensor_bytes(tensor.cpu().contiguous()):
        return ""
    return f"{name} is another one there, and extra state stays as build_model() makes it"


def _contradiction(names: Sequence[str], given: Mapping[str, Tensor], tensor: Tensor) -> str:
    """Describe different values for several names of one tensor; "" if there are none.

    Extra state must be given as it is in the model.

    Args:
        names: all names of the tensor in the model, several if it is tied.
        given: values by name, in host memory.
        tensor: the model's; values are compared in its element type.
    """
    there = [name for name in names if name in given]
    values = [given[name].to(tensor.dtype).contiguous() for name in there]
    contents = [(value.shape, tensor_bytes(value)) for value in values]
    if all(content == contents[0] for content in contents):
        return differs_from_fixed(there[0], values[0], tensor) if there else ""
    return f"{' and '.join(there)} are one weight of the model and have different values there"


def matched(
    groups: Sequence[tuple[list[str], Tensor]], given: Mapping[str, Tensor], source: str
) -> tuple[list[tuple[Tensor, Tensor]], list[str]]:
    """Match given weights with a model's, under any of the names of one that is tied.

    Args:
        groups: the model's tensors with their names.
        given: values by plain name.
        source: their name in messages.

    Returns:
        the copies to make, as (target, source), and descriptions of what does not fit.
    """
    known = {name for names, _ in groups for name in names}
    unfit = [f"{name} is only in {source}" for name in given if name not in known]
    copies: list[tuple[Tensor, Tensor]] = []
    for names, tensor in groups:
        found = next((name for name in names if name in given), None)
        if found is None:
            unfit.append(f"{names[0]} is only in the model")
        elif differing := _contradiction(names, given, tensor):
            unfit.append(differing)
        elif given[found].shape != tensor.shape:
            there, here = tuple(given[found].shape), tuple(tensor.shape)
            unfit.append(f"{found} is {there} there and {here} in the model")
        else:
            copies.append((tensor, given[found]))
    return copies, unfit


def named_groups(model: nn.Module) -> list[tuple[list[str], Tensor]]:
    """Each tensor of the model with all of its names."""
    groups: list[tuple[list[str], Tensor]] = []
    places: dict[tuple[int, torch.Size, tuple[int, ...]], int] = {}
    taken: set[str] = set()
    for full_name, value in live_tensors(model):
        name = plain_name(full_name)
        name = full_name if name in taken else name
        taken.add(name)
        identity = (value.data_ptr(), value.shape, value.stride())
        if value.numel() and identity in places:
            groups[places[identity]][0].append(name)
            continue
        places[identity] = len(groups)
        groups.append(([name], value))
    return groups


def live_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters, persistent buffers and extra state as `nn.Module.state_dict()` does.

    Names and order are those; a shared tensor comes under each of its names.

    Raises:
        TaskError: the extra state of a module is no tensor.
    """
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for name, parameter in module._parameters.items():  # noqa: SLF001 - one list for each call
            if parameter is not None:
                yield prefix + name, parameter.detach()
        for name, buffer in persistent_buffers(module).items():
            yield prefix + name, buffer.detach()
        if has_extra_state(module):
            yield prefix + _EXTRA_STATE, _extra_state(prefix + _EXTRA_STATE, module)


def _extra_state(name: str, module: nn.Module) -> Tensor:
    value: Any = module.get_extra_state()
    if not isinstance(value, Tensor):
        raise TaskError(
            f"the model's state_dict() holds {name}, which is no tensor",
            remedy="keep such state in a buffer",
        )
    return value.detach()


class Averages:
    """The averages of one model's trained parameters.

    Attributes:
        named: the averages by the name of their parameter in the model.
    """

    def __init__(
        self, model: nn.Module, parameters: Sequence[nn.Parameter], *, decay: float
    ) -> None:
        self._parameters = list(parameters)
        self._decay, self._weight = decay, 1.0 - decay
        names = {tensor.data_ptr(): name for name, tensor in model_tensors(model).items()}
        self.named: dict[str, Tensor] = {}
        for parameter in self._parameters:
            wide = torch.promote_types(parameter.dtype, torch.float32)
            self.named[names[parameter.data_ptr()]] = parameter.detach().to(wide, copy=True)

    def begin(self) -> None:
        self.update(first=True)

    def update(self, *, first: bool, steps: int = 1) -> None:
        """Update the averages after an update of the parameters that covers so many steps.

        The decay is applied once for each; after the first update the averages are the parameters.
        """
        averages = list(self.named.values())
        pairs = zip(self._parameters, averages, strict=True)
        values = [parameter.detach().to(average.dtype) for parameter, average in pairs]
        if first:
            torch._foreach_copy_(averages, values)
        else:
            weight = self._weight if steps == 1 else 1.0 - self._decay**steps
            torch._foreach_lerp_(averages, values, weight)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Use the averages as the model's weights in this context; no update may be made in it."""
        live = [parameter.data for parameter in self._parameters]
        try:
            for parameter, average in zip(self._parameters, self.named.values(), strict=True):
                parameter.data = average.to(parameter.dtype)
            yield
        finally:
            for parameter, value in zip(self._parameters, live, strict=True):
                parameter.data = value

    def load(self, given: Mapping[str, Tensor], progress: Progress = no_progress) -> None:
        """Continue with another replica's averages; if there are none, start from the weights.

        Raises:
            CheckpointError: they belong to another model.
        """
        if not given:
            self.begin()
            return
        if given.keys() != self.named.keys() or any(
            given[name].shape != average.shape for name, average in self.named.items()
        ):
            raise CheckpointError(
                "the averages of the state's weights are of another model",
                remedy="use the same [task] table",
            )
        for name, average in self.named.items():
            copy_into(average, given[name], progress)


PIECE_BYTES: Final = 64 << 20


class Hash(Protocol):
    """A hash to which content is added."""

    def update(self, content: memoryview, /) -> None:
        """Add content."""
        ...


def add_to_hash(content: Hash, tensor: Tensor, progress: Progress) -> None:
    """Add the elements of a tensor on any device, as the bytes of a contiguous one."""
    for piece in _pieces(tensor.detach().reshape(-1)):
        content.update(tensor_bytes(piece.cpu().contiguous()))
        progress()


def copied_to_host(tensor: Tensor, progress: Progress) -> Tensor:
    """Return a contiguous copy in newly allocated host memory; same shape and dtype."""
    source = tensor.detach()
    if not source.is_contiguous():
        source = source.contiguous()
    copy = torch.empty(source.shape, dtype=source.dtype, device="cpu")
    copy_into(copy, source, progress)
    return copy


def copy_into(target: Tensor, source: Tensor, progress: Progress) -> None:
    """Copy elements between tensors of the same shape, on any devices."""
    if not (target.is_contiguous() and source.is_contiguous()):
        target.copy_(source)
        progress()
        return
    into, pieces = _pieces(target.view(-1)), _pieces(source.view(-1))
    for to, piece in zip(into, pieces, strict=True):
        to.copy_(piece)
        progress()


def _pieces(flat: Tensor) -> Iterator[Tensor]:
    """Yield contiguous parts of a one-dimensional tensor; at least one."""
    length = max(1, PIECE_BYTES // flat.element_size())
    for start in range(0, max(1, flat.numel()), length):
        yield flat[start : start + length]
