from __future__ import annotations

import torch

from dtd.tasks.cifar10 import ResNet18


def test_it_is_the_published_network() -> None:
    model = ResNet18()
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_173_962
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 17 + 3  # 3 shortcuts change the shape
    assert not any(isinstance(m, torch.nn.MaxPool2d) for m in model.modules())


def test_the_last_stage_sees_4x4_pixels() -> None:
    model = ResNet18(classes=7, width=4).eval()
    images = torch.zeros(2, 3, 32, 32)
    assert model.stages(model.norm(model.stem(images))).shape == (2, 32, 4, 4)
    assert model(images).shape == (2, 7)
