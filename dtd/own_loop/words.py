"""The engine's messages about a task, in the words of somebody who has written a loop."""

from __future__ import annotations

import re
from typing import Final

_WORDS: Final = tuple(
    (re.compile(pattern), said)
    for pattern, said in (
        (r"build_optimizers\(\)\[(.*?)\] of the task returned", r"dtd.join() got as optimizer \1"),
        (r"build_(optimizers?|schedule|model)\(\) of the task returned", "dtd.join() got"),
        (r"build_optimizers?\(\) of the task gave", "the loop gave"),
        (r"the schedule of the task's build_schedule\(\)", "the schedule of dtd.join()"),
        (r"train_dataset\(\) returned", "run.batches() got"),
        (r"eval_dataset\(\) returned", "run.evaluate() got"),
        (r"the task has no eval_dataset\(\)", "the loop has no run.evaluate()"),
        (r"give it one, or leave", "call it before run.batches(), or leave"),
        (r"of train_dataset\(\)", "of run.batches()"),
        (r"metrics\(\) of the task", "metrics() of run.evaluate()"),
        (r"updates\((\d+)\) of the task", r"updates(\1) of run.batches()"),
        (r"state_dict\(\) of the task", "state_dict() of a registered object"),
        (r"the task's own state", "the state of a registered object"),
        (r"the model that build_model\(\) returns", "the model of dtd.join()"),
        (r"build_model\(\) returns the model in", "dtd.join() got the model in"),
        (r"return the model from build_model\(\)", "pass the model to dtd.join()"),
        (r"build_model\(\) must return", "dtd.join() needs"),
        (r"it from build_model\(\)", "it to dtd.join()"),
        (r"in build_model\(\)", "before dtd.join()"),
        (r"build_model\(\)", "dtd.join()"),
        (r"that build_optimizer\(\) returns", "that is passed to dtd.join()"),
        (r"register_step_pre_hook in build_optimizer", "optimizer.register_step_pre_hook"),
        (r"belongs into build_optimizers\(\)", "is passed to dtd.join() by name"),
        (r"the task's build_\w+\(\) counts", "what dtd.join() gets counts"),
        (r"loss\(\) of the task does not", "the loss of backward() does not"),
        (r"the model that is passed in", "the model of dtd.join()"),
        (r"the one that is returned", "the one of backward()"),
        (r"loss\(\)( of the task)?(?=[,.;])", "the loop, before backward()"),
        (r"loss\(\)( of the task)?", "the loop, before backward(),"),
        (r"in on_step\(\) or on_evaluation\(\)", "after optimizer.step()"),
        (r" or in a callback", " or after optimizer.step()"),
        (r"collate\(rows\)( of the task)?", "collate_fn(rows)"),
        (r"^return (?=a |an |one |the |\{)", "pass "),
        (r"the task", "the loop"),
    )
)
"""Replaced in this order."""


def in_words_of_loops(text: str) -> str:
    """Return a message or a remedy of the engine without the names of a task's methods."""
    for pattern, said in _WORDS:
        text = pattern.sub(said, text)
    return text
