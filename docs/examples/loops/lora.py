"""Fine-tune a language model of Transformers with LoRA adapters of PEFT: a loop of its own.

    python docs/examples/loops/lora.py TEXT                      # alone
    dtdctl run -- python docs/examples/loops/lora.py TEXT        # on the workers of a cluster
    dtdctl run -- python docs/examples/loops/lora.py TEXT --full # all weights, for comparison

Only trained parameters travel: the adapters, 1 % of the weights.  The model is made from its
configuration; `from_pretrained(DIRECTORY)` loads one that every worker has.  TEXT is a file that
every worker can read; without one it learns to count.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import dtd

CONTEXT = 128


class Bytes(torch.utils.data.Dataset[Tensor]):
    """Pieces of a text, a token for each byte."""

    def __init__(self, text: bytes) -> None:
        self.bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.bytes) // CONTEXT

    def __getitem__(self, row: int) -> Tensor:
        return self.bytes[row * CONTEXT : (row + 1) * CONTEXT].long()


def build_model(width: int, layers: int, *, full: bool) -> nn.Module:
    """Build a Llama of random weights; unless `full`, only its adapters are trained."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    if full:
        return model
    return get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))


def main() -> None:
    """Train on the rows of a text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--full", action="store_true", help="train all weights")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=16, help="of a step over all workers")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", help="directory for the adapters, on the first worker")
    given = parser.parse_args()

    text = given.text.read_bytes() if given.text else " ".join(map(str, range(8000))).encode()
    model = build_model(given.width, given.layers, full=given.full)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    with dtd.join(model, optimizer) as run:
        for tokens in run.batches(Bytes(text), global_batch_size=given.rows, steps=given.steps):
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            if run.is_main and run.step_number % 10 == 0:
                print(f"step {run.step_number}: loss {run.loss:.3f}", flush=True)
    if given.out and run.is_main:
        model.save_pretrained(given.out)  # only the adapters, for PeftModel.from_pretrained


if __name__ == "__main__":
    main()
