"""`chargpt`: a character-level language model over any text file.

The text's characters are its vocabulary.  The last tenth is held out.  A row is a window of
`context` characters and the one after; windows follow each other without overlap (stride =
`context`), so an epoch reads every character of the training part once, the last few excepted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dtd.errors import TaskError
from dtd.tasks import require_positive, require_share

_HELD_OUT = 0.1


class CharGpt:
    """A text and a decoder-only transformer.

    Args:
        text: path of a UTF-8 text file.
        layers: number of blocks.
        heads: attention heads in a block; divides `width`.
        width: size of a character's vector.
        context: characters in a window.
        dropout: share of values dropped in training.
    """

    def __init__(
        self,
        *,
        text: str = "data/tinyshakespeare.txt",
        layers: int = 4,
        heads: int = 4,
        width: int = 128,
        context: int = 128,
        dropout: float = 0.0,
    ) -> None:
        require_positive(layers=layers, heads=heads, width=width, context=context)
        require_share(dropout=dropout)
        if width % heads:
            raise TaskError(
                f"[task] width {width} is not a multiple of heads {heads}",
                remedy=f"set width to {width - width % heads + heads}, or change heads",
            )
        self._layers, self._heads, self._width = layers, heads, width
        self._context, self._dropout = context, dropout
        content = _read(Path(text))
        self._tokens, self._vocabulary = _tokenise(content)
        self._held_out_from = int(len(self._tokens) * (1.0 - _HELD_OUT))
        if len(self._tokens) - self._held_out_from <= context:
            raise TaskError(
                f"the text {text} is too short: its last tenth must hold more than the "
                f"context of {context} characters",
                remedy="take a longer text or a smaller context",
            )

    def build_model(self) -> nn.Module:
        """The transformer, with one score for each character of the text."""
        return Transformer(
            vocabulary=self._vocabulary,
            context=self._context,
            layers=self._layers,
            heads=self._heads,
            width=self._width,
            dropout=self._dropout,
        )

    def train_dataset(self) -> TextWindows:
        """Windows of the first nine tenths."""
        return TextWindows(tokens=self._tokens[: self._held_out_from], context=self._context)

    def eval_dataset(self) -> TextWindows:
        """Windows of the last tenth."""
        return TextWindows(tokens=self._tokens[self._held_out_from :], context=self._context)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean cross-entropy; rows are equally long, so the mean over places is that over rows."""
        inputs, targets = batch
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, tuple[Tensor, int]]:
        """Loss and accuracy of the next character, counted in characters."""
        inputs, targets = batch
        scores = model(inputs).flatten(0, 1)
        flat = targets.flatten()
        loss = F.cross_entropy(scores.float(), flat, reduction="sum")
        correct = (scores.argmax(dim=1) == flat).sum()
        return {"loss": (loss, len(flat)), "accuracy": (correct, len(flat))}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextWindows:
    """Consecutive windows of a run of character numbers."""

    tokens: Tensor
    context: int

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.fetch([row], epoch=0, seed=0)
        return inputs[0], targets[0]

    def fetch(self, row_ids: Sequence[int], *, epoch: int, seed: int) -> tuple[Tensor, Tensor]:
        """(rows, context) characters and, for each, the one that follows."""
        del epoch, seed
        starts = torch.tensor(row_ids, dtype=torch.int64) * self.context
        window = self.tokens[starts[:, None] + torch.arange(self.context + 1)]
        return window[:, :-1].contiguous(), window[:, 1:].contiguous()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(
            f"the text {path.absolute()} cannot be read: {error.strerror}",
            remedy='set text = "PATH" in the [task] table',
        ) from error
    except UnicodeDecodeError as error:
        raise TaskError(
            f"the text {path.absolute()} is not UTF-8 at byte {error.start}",
            remedy="convert it, for example with iconv -t utf-8",
        ) from error


def _tokenise(content: str) -> tuple[Tensor, int]:
    vocabulary = sorted(set(content))
    number_of = {character: number for number, character in enumerate(vocabulary)}
    numbers = [number_of[character] for character in content]
    return torch.tensor(numbers, dtype=torch.int64), len(vocabulary)


_INITIAL_SPREAD = 0.02


class Attention(nn.Module):
    """Each place looks at itself and at the places before it."""

    def __init__(self, *, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, places, width) -> the same shape."""
        rows, places, width = x.shape
        split = self.queries_keys_values(x).view(rows, places, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        mixed: Tensor = self.project(seen.transpose(1, 2).reshape(rows, places, width))
        return mixed


class Block(nn.Module):
    """Attention, then a two-layer network at each place, each added to its input."""

    def __init__(self, *, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width=width, heads=heads, dropout=dropout)
        self.network_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.project = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, places, width) -> the same shape."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        hidden = F.gelu(self.widen(self.network_norm(x)))
        out: Tensor = x + self.dropout(self.project(hidden))
        return out


class Transformer(nn.Module):
    """The whole model."""

    def __init__(
        self,
        *,
        vocabulary: int,
        context: int,
        layers: int,
        heads: int,
        width: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(width=width, heads=heads, dropout=dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(_initialise)
        for block in self.blocks:
            self._quieten(block, layers)
        self.head.weight = self.characters.weight  # one parameter under two names

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.characters(tokens) + self.places(places))
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x))
        return scores

    @staticmethod
    def _quieten(block: nn.Module, layers: int) -> None:
        """Start the layers' outputs smaller, so that the stream's size does not grow with depth."""
        for name, weight in block.named_parameters():
            if name.endswith("project.weight"):
                nn.init.normal_(weight, std=_INITIAL_SPREAD / math.sqrt(2 * layers))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=_INITIAL_SPREAD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
