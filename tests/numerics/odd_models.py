"""Models with parameters of unusual kinds, or used in unusual ways.

`TRAINS` train as in plain torch with every strategy, `REFUSED` are refused before training, `FAILS`
end their job; the latter two with the strategies that do so, and what is said.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

REPLICATED, STAGES = "replicated", ("stage 1", "stage 2", "stage 3")
EVERYWHERE = (REPLICATED, *STAGES)


class Base(nn.Module):
    """Three layers, in float64; `extra` adds what a model is about."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)
        self.double()
        self.calls = 0
        self.extra()

    def extra(self) -> None:
        pass

    def hidden(self, x):
        return torch.tanh(self.first(x))

    def forward(self, x):
        self.calls += 1
        return self.last(torch.tanh(self.second(self.hidden(x))))


def ones(*shape: int, **options: Any) -> torch.Tensor:
    return torch.ones(*shape, **{"dtype": torch.float64} | options)


# --- parameters of unusual kinds ---------------------------------------------------------------


class Transposed(Base):
    def extra(self):
        self.odd = nn.Parameter(torch.randn(6, 8).double().t())

    def forward(self, x):
        return super().forward(x) + functional.linear(x, self.odd).sum(1, keepdim=True)


class EverySecond(Base):
    """Elements of a parameter, of a frozen one and of a buffer that lie apart."""

    def extra(self):
        self.odd = nn.Parameter(torch.randn(8, 2).double()[:, 0])
        self.fixed = nn.Parameter(ones(8, 2)[:, 1], requires_grad=False)
        self.register_buffer("kept", ones(8, 2)[:, 1])

    def forward(self, x):
        return super().forward(x) * (self.odd * self.fixed * self.kept).sum()


class ChannelsLast(Base):
    def extra(self):
        self.odd = nn.Conv2d(2, 3, 2).double().to(memory_format=torch.channels_last)

    def forward(self, x):
        image = x.view(-1, 2, 3, 1).expand(-1, 2, 3, 2)
        return super().forward(x) + self.odd(image).sum((2, 3))


class Empty(Base):
    def extra(self):
        self.odd, self.line = nn.Parameter(ones(3, 0)), nn.Parameter(ones(0))

    def forward(self, x):
        return super().forward(x) + self.odd.sum()


class Scalar(Base):
    def extra(self):
        self.odd = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, x):
        return super().forward(x) * self.odd


class Mixed(Base):
    """Types that are narrow, added up over ranks in another order: equal to their rounding."""

    tolerance = 0.02

    def extra(self):
        self.first.float()
        self.narrow = nn.Parameter(torch.ones(8, dtype=torch.float16))
        self.narrower = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))

    def hidden(self, x):
        wide = torch.tanh(self.first(x.float())).double()
        return wide * self.narrow.double() * self.narrower.double()


class FrozenIntegers(Base):
    def extra(self):
        self.order = nn.Parameter(torch.arange(8).flip(0), requires_grad=False)
        self.mask = nn.Parameter(torch.arange(8) < 6, requires_grad=False)

    def hidden(self, x):
        return torch.tanh(self.first(x))[:, self.order] * self.mask


class SparseGradients(nn.Module):
    """One gradient that is sparse, and one that is the sum of a sparse and a dense one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Embedding(20, 3, sparse=True).double() for _ in range(2))
        self.last = nn.Linear(3, 3).double()

    def forward(self, x):
        at = (x.abs() * 5).long().clamp(max=19)
        return self.last(self.one(at).sum(1) + self.two(at).mean(1)) + self.two.weight.sum()


class Unused(Base):
    def extra(self):
        self.odd = nn.Parameter(ones(3))


class PartsOfOne(Base):
    """Parameters that are separate parts of one tensor, one of them interleaved with others."""

    def extra(self):
        whole = torch.randn(4, 3).double()
        self.left, self.middle = (nn.Parameter(whole[:, at]) for at in (0, 1))
        self.register_buffer("right", whole[:, 2])

    def forward(self, x):
        return super().forward(x) + self.left.square().sum() - self.middle.sum() * self.right.sum()


class Tied(Base):
    def extra(self):
        self.also = nn.Linear(8, 8).double()
        self.also.weight = self.second.weight

    def forward(self, x):
        return super().forward(x) + self.also(self.hidden(x)).sum(1, keepdim=True)


class Words(Base):
    """An embedding that is far larger than all the rest; its buckets have memory of their own."""

    tied = False

    def extra(self):
        self.words = nn.Embedding(300, 8).double()
        self.scores = nn.Linear(8, 300, bias=False).double()
        if self.tied:
            self.scores.weight = self.words.weight

    def hidden(self, x):
        return torch.tanh(self.first(x)) + self.words((x.abs() * 90).long().clamp(max=299)).mean(1)

    def forward(self, x):
        scores = self.scores(self.hidden(x))
        return super().forward(x) + scores.square().mean(1, keepdim=True)


class TiedWords(Words):
    tied = True


# --- unusual ways to use them ------------------------------------------------------------------


class Parametrized(Base):
    def extra(self):
        nn.utils.parametrizations.weight_norm(self.first)
        nn.utils.parametrizations.spectral_norm(self.second)


class Norms(Base):
    """As torch did it before parametrizations: by hooks that set an attribute."""

    def extra(self):
        nn.utils.weight_norm(self.first)
        nn.utils.spectral_norm(self.second)


class Twice(Base):
    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.second(self.hidden(x))))))


class NotCalled(Base):
    def forward(self, x):
        named = dict(self.named_parameters())
        hidden = functional.linear(self.hidden(x), self.second.weight, named["second.bias"])
        return self.last(torch.tanh(hidden))


class Checkpointed(Base):
    reentrant = False

    def forward(self, x):
        def block(hidden):
            return torch.tanh(self.second(hidden))

        hidden = checkpoint(block, self.hidden(x), use_reentrant=self.reentrant)
        return self.last(hidden)


class CheckpointedReentrant(Checkpointed):
    reentrant = True


class CheckpointedWhole(Base):
    def forward(self, x):
        return checkpoint(super().forward, x.requires_grad_(), use_reentrant=True)


class CheckpointedTwice(Base):
    """One block that is recomputed twice, by which its gradients arrive in one go."""

    reentrant = False

    def forward(self, x):
        def block(hidden):
            return torch.tanh(self.second(hidden))

        hidden = self.hidden(x)
        for _ in range(2):
            hidden = checkpoint(block, hidden, use_reentrant=self.reentrant)
        return self.last(hidden)


class HalvedGradient(Base):
    def extra(self):
        self.second.weight.register_hook(lambda gradient: gradient * 0.5)


class CompiledInside(Base):
    def extra(self):
        self.second = torch.compile(self.second, backend="eager")


class CompiledInPlace(Base):
    def extra(self):
        self.second.compile(backend="eager")


class DerivedLate(Base):
    """A buffer that is no state grows with the first pass, and one that is state is put anew."""

    def extra(self):
        self.register_buffer("kept", ones(8))

    def hidden(self, x):
        self.register_buffer("derived", ones(8), persistent=False)
        self.kept = self.kept.clone()
        return super().hidden(x) * self.derived * self.kept


class FixedExtraState(Base):
    """Extra state that stays as it is, NaN among it, and one that is empty."""

    def extra(self):
        self.nothing = NoExtraState()

    def get_extra_state(self):
        return torch.tensor([2.0, float("nan")])

    def set_extra_state(self, state):
        pass


class NoExtraState(nn.Module):
    def get_extra_state(self):
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state):
        pass


TRAINS: Mapping[str, Callable[[], nn.Module]] = {
    kind.__name__: kind
    for kind in (
        *(Transposed, EverySecond, ChannelsLast, Empty, Scalar, Mixed, FrozenIntegers),
        *(
            SparseGradients,
            Unused,
            PartsOfOne,
            Tied,
            Words,
            TiedWords,
            Parametrized,
            Norms,
            Twice,
            NotCalled,
        ),
        *(Checkpointed, CheckpointedReentrant, CheckpointedWhole, CheckpointedTwice),
        *(HalvedGradient, CompiledInPlace, DerivedLate, FixedExtraState),
    )
}


# --- what is refused before training -----------------------------------------------------------


class Complex(Base):
    def extra(self):
        self.odd = nn.Parameter(ones(8, dtype=torch.complex128))


class ComplexBuffer(Base):
    def extra(self):
        self.register_buffer("odd", ones(8, dtype=torch.complex64))


class Float8(Base):
    def extra(self):
        self.register_buffer("odd", torch.ones(3).to(torch.float8_e4m3fn))


class Sparse(Base):
    def extra(self):
        self.odd = nn.Parameter(torch.eye(8).to_sparse())


class Expanded(Base):
    def extra(self):
        self.odd = nn.Parameter(ones(1, 8).expand(3, 8))


class Negated(Base):
    def extra(self):
        self.odd = nn.Parameter(ones(8, dtype=torch.complex128).conj().imag)


class Inference(Base):
    def extra(self):
        with torch.inference_mode():
            self.odd = nn.Parameter(ones(3))


class OnMeta(Base):
    def extra(self):
        self.second.to_empty(device="meta")


class BufferOnMeta(Base):
    def extra(self):
        self.register_buffer("odd", torch.empty(3, device="meta"))


class Overlaid(Base):
    """A parameter made of a part of another one."""

    def extra(self):
        self.odd = nn.Parameter(self.second.weight.data[2:5])

    def forward(self, x):
        return super().forward(x) + functional.linear(self.hidden(x), self.odd)


class Flattened(Base):
    def extra(self):
        self.odd = nn.Parameter(self.second.weight.data.view(-1))

    def forward(self, x):
        return super().forward(x) + self.odd.square().mean()


class FrozenView(Overlaid):
    def extra(self):
        super().extra()
        self.odd.requires_grad_(requires_grad=False)


class BufferView(Overlaid):
    def extra(self):
        self.register_buffer("odd", self.second.weight.data[2:5], persistent=False)


class KeptView(Overlaid):
    """A view in an attribute, which is neither a parameter nor a buffer."""

    def extra(self):
        self.views = [self.second.weight.detach()[2:5]]

    @property
    def odd(self):
        return self.views[0]


class LateBuffer(Base):
    """A buffer that the first pass makes."""

    def forward(self, x):
        if not hasattr(self, "late"):
            self.register_buffer("late", ones(3))
        return super().forward(x) * self.late


class ExtraState(Base):
    """The largest input, as in float8 layers."""

    def extra(self):
        self.second = Largest(8, 8).double()


class Largest(nn.Linear):
    largest = 0.0

    def get_extra_state(self):
        return torch.tensor([self.largest])

    def set_extra_state(self, state):
        self.largest = float(state)

    def forward(self, x):
        self.largest = max(self.largest, float(x.detach().abs().max()))
        return super().forward(x)


_LATE = ("the buffer late was not there", "build_model")
_EXTRA = (r"extra state of the module second \(get_extra_state\(\)\) changes in loss", "a buffer")

REFUSED: Mapping[type[Base], tuple[tuple[str, ...], str, str]] = {
    Complex: (EVERYWHERE, r"parameter odd has element type torch\.complex128", "view_as_real"),
    ComplexBuffer: (EVERYWHERE, r"buffer odd has element type torch\.complex64", "view_as_real"),
    Float8: (EVERYWHERE, "buffer odd has element type", "bfloat16"),
    Sparse: (EVERYWHERE, "parameter odd has the layout", "to_dense"),
    Expanded: (EVERYWHERE, "parameter odd has elements that share memory", "clone"),
    Negated: (EVERYWHERE, "parameter odd is a lazily negated view", "clone"),
    Inference: (EVERYWHERE, "parameter odd was made in inference mode", "outside"),
    OnMeta: (EVERYWHERE, r"parameter second\.weight has no values", "to_empty"),
    BufferOnMeta: (EVERYWHERE, "buffer odd has no values", "to_empty"),
    Overlaid: (STAGES, r"odd and second\.weight|second\.weight and odd", "same nn.Parameter"),
    Flattened: (STAGES, r"odd and second\.weight share memory", "same nn.Parameter"),
    FrozenView: (STAGES, r"second\.weight and odd share memory", "replicated"),
    BufferView: (STAGES, r"buffer odd would not follow second\.weight", "in forward"),
    KeptView: (STAGES, r"a view of second\.weight that was kept", "replicated"),
    CompiledInside: (STAGES[2:], "second: it is compiled", "strategy.stage = 2"),
    LateBuffer: (STAGES, *_LATE),
    ExtraState: (STAGES, *_EXTRA),
}
"""By model: strategies that refuse it at warm-up, the message, and a word of the remedy."""


# --- what is found while it trains ---------------------------------------------------------------


class Changing(Base):
    """Changes itself in its fifth forward."""

    def forward(self, x):
        if self.calls == 4:
            self.change()
        return super().forward(x)


class Adds(Changing):
    def change(self):
        self.late = nn.Parameter(ones(3))


class AddsToLayer(Changing):
    def change(self):
        self.second.late = nn.Linear(2, 2)


class Replaces(Changing):
    def change(self):
        self.second.weight = nn.Parameter(self.second.weight.detach().clone())


class ReplacesLayer(Changing):
    def change(self):
        self.second = copy.deepcopy(self.second)


class Removes(Changing):
    def change(self):
        self.second.bias = None


class Thaws(Changing):
    def extra(self):
        self.second.weight.requires_grad_(requires_grad=False)

    def change(self):
        self.second.weight.requires_grad_()


class Moves(Changing):
    def change(self):
        self.second.weight.data = self.second.weight.data.clone()


class AddsBuffer(Changing):
    def change(self):
        self.second.register_buffer("late", ones(3))


class FillsBuffer(Changing):
    def extra(self):
        self.register_buffer("late", None)

    def change(self):
        self.late = ones(3)


class GrowsBuffer(Changing):
    def extra(self):
        self.register_buffer("mask", ones(2, 2))

    def change(self):
        self.mask = ones(3, 3)


class DropsBuffer(GrowsBuffer):
    def change(self):
        del self.mask


class CheckpointedTwiceReentrant(CheckpointedTwice):
    reentrant = True


_FROM_THERE = EVERYWHERE[:3]
"""In stage 3 whoever replaces a weight asks for it, and that at another time than before."""

FAILS: Mapping[type[Base], tuple[tuple[str, ...], str, str]] = {
    Adds: (EVERYWHERE, "the parameter late was not there", "build_model"),
    AddsToLayer: (EVERYWHERE, r"the module second\.late was not there", "build_model"),
    Replaces: (_FROM_THERE, r"the parameter second\.weight is another one", "build_model"),
    ReplacesLayer: (_FROM_THERE, "the module second is another one", "build_model"),
    Removes: (_FROM_THERE, r"the parameter second\.bias is gone", "build_model"),
    Thaws: (EVERYWHERE, r"second\.weight requires a gradient and did not", "weights-from"),
    Moves: (STAGES[:2], r"second\.weight has other memory", "hooks"),
    LateBuffer: ((REPLICATED,), *_LATE),
    ExtraState: ((REPLICATED,), *_EXTRA),
    AddsBuffer: (EVERYWHERE, r"the buffer second\.late was not there", "persistent=False"),
    FillsBuffer: (EVERYWHERE, "the buffer late was not there", "persistent=False"),
    GrowsBuffer: (EVERYWHERE, r"the buffer mask is \(3, 3\) .* and was \(2, 2\)", "final shapes"),
    DropsBuffer: (EVERYWHERE, "the buffer mask is gone", "build_model"),
    CheckpointedTwiceReentrant: (EVERYWHERE, "a gradient twice in one backward", "use_reentrant"),
}
"""By model: strategies with which its job fails, the message, and a word of the remedy."""

_ASKS = (STAGES[2:], "in another order", "strategy.stage = 2")
ASKS: Mapping[type[Base], tuple[tuple[str, ...], str, str]] = dict.fromkeys(
    (Replaces, ReplacesLayer, Removes, Moves), _ASKS
)
"""The same of those that stage 3 refuses since they ask for weights at another time."""
