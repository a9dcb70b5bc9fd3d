"""A generator and a discriminator with an optimizer each, in a loop of its own.

    python docs/examples/loops/gan.py
    dtdctl run -- python docs/examples/loops/gan.py

Both are parts of one model, and `dtd.join` gets both optimizers by name, in the order in which they
step for each batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import dtd


def mlp(inputs: int, outputs: int) -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(inputs, 32), nn.LeakyReLU(0.2), nn.Linear(32, outputs))


def judged(logits: Tensor, real: float) -> Tensor:
    """The loss of a judgement that should have been this."""
    return nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, real))


def main() -> None:
    """Learn points on a circle."""
    angles = torch.rand(2048, generator=torch.Generator().manual_seed(1)) * 6.2832
    rows = torch.utils.data.TensorDataset(torch.stack([angles.cos(), angles.sin()], 1))
    model = nn.ModuleDict({"generator": mlp(4, 2), "discriminator": mlp(2, 1)})
    generator, discriminator = model["generator"], model["discriminator"]
    optimizers = {
        "discriminator": torch.optim.Adam(discriminator.parameters(), lr=2e-3),
        "generator": torch.optim.Adam(generator.parameters(), lr=1e-3),
    }
    with dtd.join(model, optimizers) as run:
        for (points,) in run.batches(rows, global_batch_size=128, epochs=2):
            made = generator(torch.randn(len(points), 4))
            loss = judged(discriminator(points), 1.0) + judged(discriminator(made.detach()), 0.0)
            loss.backward()
            optimizers["discriminator"].step()

            judged(discriminator(made), 1.0).backward()
            optimizers["generator"].step()
            if run.is_main and run.step_number % 16 == 0:
                print(f"step {run.step_number}: losses add up to {run.loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
