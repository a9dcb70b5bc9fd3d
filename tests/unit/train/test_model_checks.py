"""Models that no state can hold, and tensors that share memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.errors import TaskError
from dtd.train.task_checks import check_memory, may_overlap

WHOLE = torch.arange(24.0)


@pytest.mark.parametrize(
    "tensor",
    [
        WHOLE,
        WHOLE[:0],
        WHOLE[3],
        WHOLE.view(4, 6),
        WHOLE.view(4, 6).t(),
        WHOLE.view(4, 6)[:, ::2],
        WHOLE.view(4, 6)[1:3, 2],
        WHOLE.view(2, 3, 4).permute(2, 0, 1)[1:],
        WHOLE.view(1, 24).expand(1, 24),
        WHOLE[:0].view(0, 3),
    ],
)
def test_slices_and_transposed_ones_do_not_overlap(tensor) -> None:
    assert not may_overlap(tensor.shape, tensor.stride())


@pytest.mark.parametrize(
    "tensor", [WHOLE.view(1, 24).expand(2, 24), WHOLE.unfold(0, 3, 1), WHOLE[0].expand(2)]
)
def test_expanded_tensors_and_windows_overlap(tensor) -> None:
    assert may_overlap(tensor.shape, tensor.stride())


class Views(nn.Module):
    """A trained parameter of columns 0 to 3 of a matrix, and what is given beside it."""

    def __init__(self, **others) -> None:
        super().__init__()
        self.matrix = torch.zeros(5, 6)
        self.trained = nn.Parameter(self.matrix[:, :3])
        for name, of in others.items():
            setattr(self, name, of(self.matrix))

    def check(self) -> None:
        check_memory(self, [one for one in self.parameters() if one.requires_grad])


@pytest.mark.parametrize(
    "of",
    [
        lambda matrix: nn.Parameter(matrix[:, 3:]),  # interleaved, row by row
        lambda matrix: nn.Parameter(matrix[:, 3:], requires_grad=False),
        lambda matrix: nn.Buffer(matrix[2, 4:]),
        lambda matrix: nn.Parameter(matrix[:, :3].clone()),
        lambda matrix: nn.Parameter(matrix[:0]),
    ],
)
def test_parts_that_have_no_element_in_common_are_separate(of) -> None:
    Views(other=of).check()


@pytest.mark.parametrize(
    ("of", "kind"),
    [
        (lambda matrix: nn.Parameter(matrix[4, 2:]), "parameter"),
        (lambda matrix: nn.Parameter(matrix[1:], requires_grad=False), "parameter"),
        (lambda matrix: nn.Buffer(matrix[:1]), "buffer"),
        (lambda matrix: nn.Buffer(matrix.view(torch.int32)), "buffer"),
    ],
)
def test_a_common_element_is_named_with_both(of, kind) -> None:
    with pytest.raises(TaskError, match=f"trained and other share memory.*the {kind} other would"):
        Views(other=of).check()
