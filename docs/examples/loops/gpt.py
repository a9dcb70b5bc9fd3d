"""A small GPT that learns the characters of a text, in a loop of its own.

    python docs/examples/loops/gpt.py TEXT                      # alone
    dtdctl run -- python docs/examples/loops/gpt.py TEXT        # on the workers of a cluster

TEXT is a file that every worker can read; without one it learns to count.  Weight decay of matrices
alone, clipping, accumulation, and a learning rate that the loop sets itself.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor, nn

import dtd

CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 4, 2


class Text(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Pieces of a text, each with the same piece one character later."""

    def __init__(self, text: str) -> None:
        self.alphabet = sorted(set(text))
        number = {character: index for index, character in enumerate(self.alphabet)}
        self.text = torch.tensor([number[character] for character in text])

    def __len__(self) -> int:
        return (len(self.text) - 1) // CONTEXT

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        piece = self.text[row * CONTEXT : (row + 1) * CONTEXT + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    """Attention to what came before, then two layers for each character."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixes, self.mixed = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """float [rows, characters, WIDTH] -> the same."""
        heads = self.mixes(self.before(x)).unflatten(-1, (3, HEADS, -1)).transpose(1, 3)
        seen = nn.functional.scaled_dot_product_attention(*heads.unbind(2), is_causal=True)
        x = x + self.mixed(seen.transpose(1, 2).flatten(2))
        return x + self.layers(self.between(x))


class GPT(nn.Module):
    """Predicts the next character of each place: int64 [rows, characters] -> logits."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, characters, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Return float [rows, characters, alphabet]."""
        return self.head(self.blocks(self.embed(x) + self.place))


def rate(step: int, steps: int, *, highest: float = 3e-3, warm_up: int = 10) -> float:
    """Learning rate of a step: up in a line, down along a cosine to a tenth."""
    if step < warm_up:
        return highest * (step + 1) / warm_up
    done = (step - warm_up) / max(1, steps - warm_up)
    return highest * (0.55 + 0.45 * math.cos(math.pi * done))


def main() -> None:
    """Train on a text."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("text", nargs="?", type=Path)
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--batch", type=int, default=32)
    given = options.parse_args()
    rows = Text(given.text.read_text() if given.text else " ".join(map(str, range(8000))))
    model = GPT(len(rows.alphabet))
    matrices = [one for one in model.parameters() if one.dim() > 1]
    others = [one for one in model.parameters() if one.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )
    shown = 0
    with dtd.join(model, optimizer) as run:
        batches = run.batches(rows, global_batch_size=given.batch, steps=given.steps, accumulate=2)
        for x, y in batches:
            for group in optimizer.param_groups:
                group["lr"] = rate(run.step_number, given.steps)
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of averages, in the end
            optimizer.step()  # counts after the second backward()
            run.log(norm=norm)
            if run.is_main and run.step_number == shown + 10:
                shown += 10
                print(f"step {run.step_number}: loss {run.loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
