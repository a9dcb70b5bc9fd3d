"""Runs stories and random plans, one after another, until a rule is broken.

`scripts/mutate` uses it to judge a copy of the tree with a planted fault.  A plan is named by its
seed and what kind of jobs it has: "7", "7 sharded", "7 sharded beside".  Only broken rules count
for stories; a story whose text changed is reported separately.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.sim import many, story

STORIES = Path(__file__).parent.parent / "simulation" / "stories"
KINDS = ("", " sharded", " sharded beside")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of all plans until a rule was broken or the time was up.

    Attributes:
        rule: the first broken rule, as the oracle names it; empty if none was broken.
        by: the story or the plan that broke it.
        told_otherwise: a story that kept the rules but whose text changed.
        plans: number of plans that were run.
        seconds: processor time in seconds.
    """

    rule: str
    by: str
    told_otherwise: str
    plans: int
    seconds: float


def judge(seeds: Iterable[int], *, first: str, most_s: float) -> Verdict:
    """Run all stories, then the plans of seeds.

    Args:
        seeds: seeds of random plans.
        first: a story or a plan to begin with; empty for none.
        most_s: limit of processor time in seconds.
    """
    begun_s, plans, told_otherwise = time.process_time(), 0, ""
    for by in _chosen(seeds, first):
        seconds = time.process_time() - begun_s
        if seconds > most_s:
            break
        plans += 1
        seed, *kinds = by.split()
        if seed.isdigit():
            played = many.play(int(seed), sharded="sharded" in kinds, beside="beside" in kinds)
            rule = played.failure
        else:
            rule, otherwise = _tell(by)
            told_otherwise = told_otherwise or (by if otherwise else "")
        if rule:
            seconds = time.process_time() - begun_s
            words = _in_short(rule)
            return Verdict(
                rule=words, by=by, told_otherwise=told_otherwise, plans=plans, seconds=seconds
            )
    return Verdict(rule="", by="", told_otherwise=told_otherwise, plans=plans, seconds=seconds)


def _chosen(seeds: Iterable[int], first: str) -> Iterator[str]:
    if first:
        yield first
    yield from sorted(path.stem for path in STORIES.glob("*.txt"))
    for seed in seeds:
        yield from (f"{seed}{kind}" for kind in KINDS)


def _tell(name: str) -> tuple[str, bool]:
    text = (STORIES / f"{name}.txt").read_text()
    try:
        return "", story.tell(text) != text
    except Exception as error:  # noqa: BLE001 - any error is reported with its story
        return f"{type(error).__name__}: {error}", True


def _in_short(failure: str) -> str:
    """The rule without the details, which differ from plan to plan."""
    kind, _, words = re.sub(r"(?<= )/\S+", "...", failure).partition(": ")
    rule = re.split(r"[:;(\[]", words)[0].strip()
    if kind == "Broken":
        return re.sub(r"nothing has ended by .*", "nothing has ended", rule)
    return f"{kind}: {rule}"[:80].rstrip(": ")
