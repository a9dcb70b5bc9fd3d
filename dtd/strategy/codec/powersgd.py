"""PowerSGD: gradient matrices are sent as two thin factors, with error feedback for the rest.

Vogels, Karimireddy and Jaggi, "PowerSGD: Practical low-rank gradient compression for distributed
optimization", NeurIPS 2019 (arXiv:1905.13727), algorithms 1 and 2.  For each matrix, M_w is the
contribution of rank w (its gradient plus its error so far) and Q the factor of the previous step:

    P = sum over w of M_w Q         first exchange
    P = orthogonalised(P)           identical on all ranks
    Q = sum over w of M_w^T P       second exchange
    P Q^T                           approximates the sum of all M_w
    M_w - P (M_w^T P)^T             is rank w's error, added to its next gradient

A rank's error is what it could not send itself, as in algorithm 2.  Published implementations use
the difference to the mean instead.  The sum over ranks is the same, and so is every result, but if
a rank died, all differences between its gradients and the others' would be lost with it.

A tensor with two or more dimensions is a matrix of shape[0] rows.  It is compressed if its factors
are smaller by `min_compression`: (rows + columns) * rank * min_compression < rows * columns, where
the rank is at most the smaller side.  Other tensors are sent unchanged, with the first factors.

Whatever the ranks compute from results uses elementwise operations in a fixed order, like those of
the optimizers, so it is the same bytes on all processors that may train together
(`dtd.train.warm_up.fingerprints`), with any number of threads.  Products with M_w depend on the
processor, but are summed before they are used.

Factors are stored transposed, a row for each column of P or Q: with a large matrix as the second
operand, a product takes a third of the time.

Q is equal on all ranks without being part of the state: every generation restarts it from a draw
that depends only on the job's seed and the step, so ranks that have just joined have the same one.
After a few steps Q is accurate again.  Without `warm_start` it is drawn anew in every step.

Draws are uniform because all processors compute them identically, unlike normal ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dtd.strategy.codec.api import Coder, FlatLayout, LocalState, Wire, World

Floats = npt.NDArray[np.float32]

_DEPENDENT: Final = 1e-24
"""A column depends on the columns before it if less than this fraction of its square remains."""

_BLOCK_ELEMENTS: Final = 1 << 17
"""Number of elements decoded at a time, so that they stay in the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSGD:
    """The codec.

    Attributes:
        rank: number of columns of a factor.
        start_step: committed steps before which nothing is compressed.
        warm_start: factors start from those of the previous step.
        error_feedback: the unsent rest is added to the next gradients.
        min_compression: a matrix is compressed if that reduces its elements by this factor.
        seed: the job's seed.
    """

    rank: int
    start_step: int = 0
    warm_start: bool = True
    error_feedback: bool = True
    min_compression: float = 2.0
    seed: int = 0

    @property
    def risk(self) -> str:
        return f"matrices become approximations of rank {self.rank}; check the loss"

    @property
    def passes(self) -> float:
        return 8.0 + 2.0 * self.rank

    def coder(self, layout: FlatLayout, index: int, device: torch.device) -> PowerSGDCoder | None:
        if layout.dtype != torch.float32:
            return None
        matrices, rest = self._divide(layout)
        if not matrices:
            return None
        return PowerSGDCoder(self, layout.elements, matrices, rest, index, device)

    def _divide(self, layout: FlatLayout) -> tuple[list[_Matrix], list[tuple[int, int]]]:
        """Return a bucket's compressible matrices, and the spans of all other elements."""
        matrices: list[_Matrix] = []
        rest: list[tuple[int, int]] = []
        for tensor in layout.tensors:
            rows = tensor.shape[0] if len(tensor.shape) > 1 else 0
            columns = (tensor.stop - tensor.start) // rows if rows else 0
            rank = min(self.rank, rows, columns)
            factors = (rows + columns) * rank
            if 0 < factors * self.min_compression < rows * columns:
                matrices.append(_Matrix(tensor.start, rows, columns, rank))
            elif tensor.stop > tensor.start:
                rest.append((tensor.start, tensor.stop))
        return matrices, rest


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Elements [start, start + rows * columns) of a bucket."""

    start: int
    rows: int
    columns: int
    rank: int

    def of(self, flat: Tensor) -> Tensor:
        """Return the matrix in a flat tensor with the bucket's layout, (rows, columns)."""
        stop = self.start + self.rows * self.columns
        return flat[self.start : stop].view(self.rows, self.columns)


class PowerSGDCoder(Coder):
    """The coder of one bucket."""

    def __init__(
        self,
        codec: PowerSGD,
        elements: int,
        matrices: Sequence[_Matrix],
        rest: Sequence[tuple[int, int]],
        index: int,
        device: torch.device,
    ) -> None:
        self._codec = codec
        self._matrices = matrices
        self._rest = rest
        self._index = index
        self._device = device
        self._p_elements = sum(one.rows * one.rank for one in matrices)
        self._q_elements = sum(one.columns * one.rank for one in matrices)
        raw = sum(stop - start for start, stop in rest)
        self._wires = [
            Wire(elements=self._p_elements + raw, dtype=torch.float32),
            Wire(elements=self._q_elements, dtype=torch.float32),
        ]
        self._q = LocalState(self._q_elements, torch.device("cpu"), in_gradient_units=False)
        self.local = [self._q]
        if codec.error_feedback:
            self.residual = LocalState(elements, device)
            self.local = [self._q, self.residual]
        self._first = torch.empty(0)
        self._given = torch.empty(0)
        self._factors: list[Tensor] = []

    def restart(self, world: World) -> None:
        """Let all ranks, new or not, begin with the same factors."""
        self._restart(world.first_step)

    def _restart(self, step: int) -> None:
        self._first = self._draw(step)
        self._q.new().copy_(self._first)
        self._q.commit()

    def _draw(self, step: int) -> Tensor:
        draws = np.random.default_rng([self._codec.seed, step, self._index])
        return torch.from_numpy(draws.random(self._q_elements, dtype=np.float32) - np.float32(0.5))

    def wires(self, world: World, step: int) -> Sequence[Wire]:
        """First factors and uncompressed elements, then second factors."""
        del world
        if not self._codec.warm_start:
            self._restart(step)
        return self._wires

    # --- a step ----------------------------------------------------------------------------

    def encode(self, stage: int, flat: Tensor, wires: Sequence[Tensor]) -> None:
        """Compute the factors of this rank's matrices."""
        if stage == 0:
            self._encode_first(flat, wires[0])
        else:
            self._encode_second(wires[0], wires[1])

    def _encode_first(self, flat: Tensor, wire: Tensor) -> None:
        self._given = flat
        if self.residual is not None:
            self._given = torch.add(flat, self.residual.current, out=self.residual.new())
        old = self._q.current.to(self._device)
        for matrix, p, q in self._parts(wire, old):
            p.copy_(torch.mm(q, matrix.of(self._given).t()), non_blocking=True)
        at = self._p_elements
        for start, stop in self._rest:
            wire[at : at + stop - start].copy_(flat[start:stop], non_blocking=True)
            if self.residual is not None:
                self._given[start:stop].zero_()
            at += stop - start

    def _encode_second(self, firsts: Tensor, wire: Tensor) -> None:
        self._factors = []
        for matrix, p, q in self._parts(firsts, wire):
            factor = torch.from_numpy(orthogonalised(p.numpy())).to(self._device)
            self._factors.append(factor)
            given = matrix.of(self._given)
            own = torch.mm(factor, given)
            q.copy_(own, non_blocking=True)
            if self.residual is not None:
                given.addmm_(factor.t(), own, alpha=-1)

    def decode(self, flat: Tensor, wires: Sequence[Tensor]) -> None:
        """Write the product of the factors; the second ones are the next step's initial guess."""
        second = wires[1].to(self._device)
        for (matrix, _, q), p in zip(self._parts(wires[0], second), self._factors, strict=True):
            write_product(matrix.of(flat), p, q)
        at = self._p_elements
        for start, stop in self._rest:
            flat[start:stop].copy_(wires[0][at : at + stop - start], non_blocking=True)
            at += stop - start
        self._guess(wires[1])

    def _guess(self, seconds: Tensor) -> None:
        """Scale the columns to a size that squares well: only their span matters.

        A column that has become zero would stay zero, so it is restarted.
        """
        of_each = (self._seconds(flat) for flat in (seconds, self._first, self._q.new()))
        for q, first, guess in zip(*of_each, strict=True):
            largest = q.abs().amax(dim=1, keepdim=True)  # a maximum does not depend on the order
            torch.div(q, largest, out=guess)
            if not largest.all():
                guess.copy_(torch.where(largest == 0, first, guess))

    def _parts(self, firsts: Tensor, seconds: Tensor) -> list[tuple[_Matrix, Tensor, Tensor]]:
        """Return each matrix with its factors, (rank, rows) and (rank, columns)."""
        sizes = [one.rows * one.rank for one in self._matrices]
        found = torch.split(firsts[: self._p_elements], sizes)
        ps = [p.view(one.rank, one.rows) for p, one in zip(found, self._matrices, strict=True)]
        return list(zip(self._matrices, ps, self._seconds(seconds), strict=True))

    def _seconds(self, flat: Tensor) -> list[Tensor]:
        """Return the second factors as matrices, (rank, columns)."""
        sizes = [one.columns * one.rank for one in self._matrices]
        found = torch.split(flat, sizes)
        return [q.view(one.rank, one.columns) for q, one in zip(found, self._matrices, strict=True)]


def orthogonalised(factor: Floats) -> Floats:
    """Orthonormalise the rows in order (Gram-Schmidt); the same bytes on all processors.

    A row that is zero or depends on earlier ones becomes zero.  A value that is not finite makes
    its row and all later ones not finite.

    Args:
        factor: float32, (rank, rows of the matrix), none of them 0.
    """
    vectors = factor.astype(np.float64)
    with np.errstate(all="ignore"):  # what is not finite is found after the vote
        before = _sum(vectors * vectors)
        for at, vector in enumerate(vectors):
            after = vectors[at + 1 :]
            products = _sum(vectors[at:] * vector)
            square = products[0]
            if square <= _DEPENDENT * before[at] < math.inf:
                vector[:] = 0.0
                continue
            after -= (products[1:] / square)[:, None] * vector
            vector /= np.sqrt(square)
        return vectors.astype(np.float32)


def _sum(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Sum over the last axis, one after another: the order of `np.sum` depends on the processor."""
    return np.add.accumulate(values, axis=-1)[..., -1]


def write_product(out: Tensor, p: Tensor, q: Tensor) -> None:
    """Compute out = p^T q by adding products in a fixed order; equal bytes with any thread count.

    Args:
        out: (rows, columns).
        p: (rank, rows).
        q: (rank, columns).
    """
    rows, columns = out.shape
    step = rows if out.device.type != "cpu" else max(1, _BLOCK_ELEMENTS // columns)
    of_blocks = torch.split(p.unsqueeze(2), step, dim=1)
    for block, (first, *others) in zip(torch.split(out, step), of_blocks, strict=True):
        torch.mul(first, q[0], out=block)
        for column, row in zip(others, q[1:], strict=True):
            block.addcmul_(column, row)
