"""A model whose blocks are recomputed in backward is an ordinary one between steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.conftest import Daemons

pytestmark = pytest.mark.integration

JOB = """
[job]
name = "scripting"
task = "scripting_task:Scripting"
steps = 4
global_batch_size = 64
[train]
activation_checkpointing = true
[elastic]
settle_s = 0.0
min_workers = 2
"""


def test_a_callback_scripts_the_model(start_daemons: Callable[[int], Daemons]) -> None:
    daemons = start_daemons(2)
    answer = daemons.wait(daemons.submit(text=JOB))
    assert answer["state"] == "done", answer
