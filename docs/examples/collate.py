"""Words of different lengths, in batches of similar length: which of two letters is more common?

dtdctl submit docs/examples/collate.toml
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Words:
    """Words of letters 1 and 2; letter 0 pads."""

    def __init__(self, rows: int, first: int) -> None:
        self.rows, self.first = rows, first

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        draw = torch.Generator().manual_seed(self.first + row)
        length = int(torch.randint(3, 20, (1,), generator=draw)) | 1  # odd, so that there is no tie
        word = torch.randint(1, 3, (length,), generator=draw)
        return word, int(word.float().mean() > 1.5)


class MajorityLetter:
    def __init__(self, rows: int = 1000) -> None:
        self.rows = rows

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Embedding(3, 16, padding_idx=0),
            Mean(),
            nn.Linear(16, 16),
            nn.ReLU(),
            nn.Linear(16, 2),
        )

    def train_dataset(self) -> Words:
        return Words(self.rows, first=0)

    def eval_dataset(self) -> Words:
        return Words(self.rows // 4, first=self.rows)

    def row_lengths(self) -> list[int]:
        words = self.train_dataset()
        return [len(words[row][0]) for row in range(len(words))]

    @staticmethod
    def collate(rows: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        words, labels = zip(*rows, strict=True)
        return nn.utils.rnn.pad_sequence(list(words), batch_first=True), torch.tensor(labels)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        words, labels = batch
        return nn.functional.cross_entropy(model(words), labels)

    def metrics(
        self, model: nn.Module, batch: tuple[Tensor, Tensor]
    ) -> dict[str, tuple[Tensor, int]]:
        words, labels = batch
        return {"accuracy": ((model(words).argmax(1) == labels).sum(), len(labels))}


class Mean(nn.Module):
    """Mean over the letters of a word; padding is zero."""

    def forward(self, embedded: Tensor) -> Tensor:
        letters = (embedded.abs().sum(2) > 0).sum(1, keepdim=True)
        return embedded.sum(1) / letters.clamp(min=1)
