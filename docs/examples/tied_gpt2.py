"""A small GPT-2: the embedding of a letter is also the weight that scores it (tied weights).

dtdctl submit docs/examples/tied_gpt2.toml

It learns to count aloud.  A tied weight is trained, averaged and saved once, and the lines that
`dtdctl fetch` prints tie it again.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def spoken(number: int) -> str:
    return " ".join(DIGITS[int(digit)] for digit in str(number)) + ". "


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows, places, width = x.shape
        q, k, v = (
            part.view(rows, places, self.heads, -1).transpose(1, 2)
            for part in self.attend(self.norm_1(x)).chunk(3, dim=-1)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(rows, places, width))
        return x + self.mlp(self.norm_2(x))


class GPT2(nn.Module):
    def __init__(self, letters: int, context: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)
        nn.init.normal_(self.letters.weight, std=0.02)
        self.head.weight = self.letters.weight  # one parameter under two names

    def forward(self, text: Tensor) -> Tensor:
        x = self.letters(text) + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x))
        return scores


class CountAloud:
    def __init__(self, context: int = 32, layers: int = 2, heads: int = 2, width: int = 32) -> None:
        self.context, self.layers, self.heads, self.width = context, layers, heads, width
        text = "".join(spoken(number) for number in range(1000))
        self.alphabet = sorted(set(text))
        letters = torch.tensor([self.alphabet.index(letter) for letter in text])
        rows = letters[: len(letters) // (context + 1) * (context + 1)].view(-1, context + 1)
        held_out = len(rows) // 10
        self.train, self.held_out = rows[held_out:], rows[:held_out]

    def build_model(self) -> nn.Module:
        return GPT2(len(self.alphabet), self.context, self.layers, self.heads, self.width)

    def train_dataset(self) -> TensorDataset:
        return TensorDataset(self.train)

    def eval_dataset(self) -> TensorDataset:
        return TensorDataset(self.held_out)

    def loss(self, model: nn.Module, batch: tuple[Tensor]) -> Tensor:
        (rows,) = batch
        scores = model(rows[:, :-1])
        return functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())

    def metrics(self, model: nn.Module, batch: tuple[Tensor]) -> dict[str, tuple[Tensor, int]]:
        (rows,) = batch
        right = (model(rows[:, :-1]).argmax(-1) == rows[:, 1:]).sum()
        return {"accuracy": (right, rows[:, 1:].numel())}
