"""Every operation of a pass is seen; how models are seen is in `tests/numerics`."""

from __future__ import annotations

import subprocess
import sys

NOTHING_COMPILED = """
import sys, torch
from dtd.strategy.sharded.uses import DirectUses, FormerMemory

own = torch.ones(3)

def bucket_of(tensor):
    return 0 if tensor is own else None

with DirectUses(bucket_of, lambda bucket: False, FormerMemory([])) as uses:
    own + 1
assert uses.first is own
sys.exit(" ".join({"torch._dynamo", "sympy"} & sys.modules.keys()) or None)
"""


def test_watching_a_pass_does_not_import_the_compiler() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", NOTHING_COMPILED], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
