"""A decoder-only transformer that predicts the next character at each position.

Pre-norm blocks as in GPT-2 (A. Radford et al., "Language Models are Unsupervised Multitask
Learners", 2019); the embedding of a character and the weights that score it are one and the same
parameter (O. Press, L. Wolf, "Using the Output Embedding to Improve Language Models", 2017).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

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
    """The whole model.

    Args:
        vocabulary: number of different characters.
        context: longest run it can read.
        layers: number of blocks.
        heads: attention heads in a block; divides `width`.
        width: size of a character's vector.
        dropout: share of values dropped in training.
    """

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
        """(rows, places) character numbers -> (rows, places, vocabulary) scores."""
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
