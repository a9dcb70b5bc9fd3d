"""Does this code break a rule?  Stories and random plans, one after another, until one does.

What `scripts/mutate` asks of a copy of the tree in which a fault was planted.  Stories count by the
rules alone; that one is told in other words is said beside it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from tests.sim import many, story

STORIES = Path(__file__).parent.parent / "simulation" / "stories"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of all plans until a rule was broken, or the time was over.

    Attributes:
        rule: the one that was broken first, in the words of the judge; empty for none.
        by: the story or the seed that broke it.
        told_otherwise: a story that kept the rules and came out different.
        plans: how many were played.
        seconds: of processor time.
    """

    rule: str
    by: str
    told_otherwise: str
    plans: int
    seconds: float


def judge(seeds: Iterable[int], *, first: str, most_s: float) -> Verdict:
    """Play stories and seeds in turn.

    Args:
        seeds: of random plans.
        first: a story or a seed to begin with; empty for none.
        most_s: of processor time.
    """
    begun_s, plans, told_otherwise = time.process_time(), 0, ""
    for by in _in_turn(seeds, first):
        seconds = time.process_time() - begun_s
        if seconds > most_s:
            break
        plans += 1
        if by.isdigit():
            rule = many.play(int(by)).failure
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


def _in_turn(seeds: Iterable[int], first: str) -> Iterator[str]:
    if first:
        yield first
    stories = sorted(path.stem for path in STORIES.glob("*.txt"))
    for one, seed in zip_longest(stories, seeds):
        if one is not None:
            yield one
        if seed is not None:
            yield str(seed)


def _tell(name: str) -> tuple[str, bool]:
    text = (STORIES / f"{name}.txt").read_text()
    try:
        return "", story.tell(text) != text
    except Exception as error:  # noqa: BLE001 - whatever it is, the story belongs to it
        return f"{type(error).__name__}: {error}", True


def _in_short(failure: str) -> str:
    """The rule without the details: those differ from plan to plan."""
    kind, _, words = failure.partition(": ")
    rule = re.split(r"[:;(\[]", words)[0].strip()
    if kind == "Broken":
        return re.sub(r"nothing has ended by .*", "nothing has ended", rule)
    return f"{kind}: {rule}"[:80].rstrip(": ")
