"""A small transformer that learns the characters of a text, in a loop of its own.

    python docs/examples/loops/chars.py TEXT                      # alone
    dtdctl run -- python docs/examples/loops/chars.py TEXT        # on the workers of a cluster

TEXT is a file that every worker can read; without one it learns to count.
"""

from __future__ import annotations

import sys
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


class Transformer(nn.Module):
    """Each character attends to those before it."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, x: Tensor) -> Tensor:
        """Predict the next character of each place: int64 [rows, CONTEXT] -> logits."""
        hidden = self.embed(x) + self.place
        return self.head(self.layers(hidden, mask=self.mask, is_causal=True))


def main() -> None:
    """Train for two epochs."""
    text = Path(sys.argv[1]).read_text() if sys.argv[1:] else " ".join(map(str, range(8000)))
    rows = Text(text)
    model = Transformer(len(rows.alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with dtd.join(model, optimizer) as run:
        for x, y in run.batches(rows, global_batch_size=32, epochs=2):
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of the averages over all ranks
            optimizer.step()
            if run.is_main and run.step_number % 10 == 0:
                print(f"step {run.step_number}: loss {run.loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
