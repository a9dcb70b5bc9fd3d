"""ResNet-18 for 32x32 images.

K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, in the
form that suits small images: the stem is a 3x3 convolution of stride 1 and there is no max-pool.

    stem    3 -> w          32x32
    stage 1 w -> w     x2   32x32
    stage 2 w -> 2w    x2   16x16
    stage 3 2w -> 4w   x2    8x8
    stage 4 4w -> 8w   x2    4x4
    mean over the pixels, linear to the classes          (w = 64: 11,173,962 parameters)
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions and the way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs, 1)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        """(rows, inputs, h, w) -> (rows, outputs, h / stride, w / stride)."""
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """The whole network.

    Args:
        classes: number of outputs.
        width: channels of the first stage; 64 is the published network.
    """

    def __init__(self, *, classes: int = 10, width: int = 64) -> None:
        super().__init__()
        self.stem = _conv3x3(3, width, 1)
        self.norm = nn.BatchNorm2d(width)
        self.stages = nn.Sequential(
            _stage(width, width, stride=1),
            _stage(width, 2 * width, stride=2),
            _stage(2 * width, 4 * width, stride=2),
            _stage(4 * width, 8 * width, stride=2),
        )
        self.head = nn.Linear(8 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """(rows, 3, 32, 32) -> (rows, classes)."""
        x = F.relu(self.norm(self.stem(images)))
        x = self.stages(x)
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


def _stage(inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(Block(inputs, outputs, stride), Block(outputs, outputs, 1))


def _conv3x3(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
