"""Train thousands of random tasks: python -m scripts.fuzz_jobs [--jobs N].

Each is trained by dtd, in any strategy and through joins, losses, stops and broken rings, and in
plain torch (`tests.jobs`).  Both must agree, or dtd must have refused the task before its first
step.  A failure is printed in its smallest form, and the exit status is 1; --write puts
the tables into docs/evaluation.md.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from scripts.markdown import put_into, table
from tests.jobs.recipe import FEATURES, Recipe, chosen
from tests.jobs.verdict import Verdict, judge

BLOCK: Final = 50
"""Jobs of one seed."""
PAGE: Final = Path("docs/evaluation.md")
KINDS: Final = ("agrees", "warned", "refused", "fails")
NAMES: Final = re.compile(
    r"(layers|first|head|weights)(\.\w+)+|\d+(\.\d+)?(e-\d+)?| \(.*"
    r"|(?<=has given )\w+|(?<=a hook of its step, )[^,]+|(?<=, and )\w+(?= may need all)",
    re.DOTALL,
)
"""Parts that differ between sentences of one kind."""

Judged = list[tuple[Recipe, Verdict]]
Failed = dict[str, Recipe]
"""The first recipe of each kind of failure."""


def block(number: int) -> Judged:
    """The jobs of one seed, with their verdicts."""
    source = random.Random(number)  # noqa: S311 - the same jobs each time
    recipes = [chosen(source.choice) for _ in range(BLOCK)]
    return [(recipe, judge(recipe)) for recipe in recipes]


def smallest(recipe: Recipe, wanted: str) -> Recipe:
    """The plainest recipe that still fails in these words; leaves out one thing at a time."""
    for smaller in _smaller(recipe):
        verdict = judge(smaller)
        if verdict.kind == "fails" and _kind_of(verdict) == wanted:
            return smallest(smaller, wanted)
    return recipe


def _smaller(recipe: Recipe) -> Iterator[Recipe]:
    for place in range(len(recipe.events)):
        yield replace(recipe, events=recipe.events[:place] + recipe.events[place + 1 :])
    for place in range(len(recipe.layers)):
        yield replace(recipe, layers=recipe.layers[:place] + recipe.layers[place + 1 :])
    for place, (name, value) in enumerate(recipe.features):
        if value != FEATURES[name][0]:
            features = list(recipe.features)
            features[place] = (name, FEATURES[name][0])
            yield replace(recipe, features=tuple(features))
    for ranks in range(1, recipe.ranks):
        yield replace(recipe, ranks=ranks)


def _kind_of(verdict: Verdict) -> str:
    """A sentence without names and figures."""
    return " ".join(NAMES.sub("...", verdict.why).split())


# --- tables --------------------------------------------------------------------------------------


def tables(judged: Judged, seconds: float) -> str:
    """Figures of all jobs in Markdown."""
    kinds = Counter(verdict.kind for _, verdict in judged)
    distinct = len({recipe for recipe, _ in judged})
    total = ", ".join(f"{kinds[kind]:,} {WORDS[kind]}" for kind in KINDS)
    summary = f"{len(judged):,} jobs, {distinct:,} of them different, in {seconds / 60:.0f} minutes"
    return "\n\n".join(
        (
            f"{summary}: {total}.",
            table(("strategy", *WORDS.values()), _strategies(judged)),
            table(("refusals and warnings", "jobs"), _sentences(judged)),
        )
    )


WORDS: Final = {"agrees": "agree", "warned": "warned", "refused": "refused", "fails": "failed"}


def _strategies(judged: Judged) -> Iterator[tuple[str, ...]]:
    counts = Counter((recipe["strategy"], verdict.kind) for recipe, verdict in judged)
    for name in FEATURES["strategy"]:
        yield (name, *(f"{counts[name, kind]:,}" for kind in KINDS))


def _sentences(judged: Judged) -> Iterator[tuple[str, str]]:
    counts = Counter(
        _kind_of(verdict) for _, verdict in judged if verdict.kind in ("warned", "refused")
    )
    for sentence, count in counts.most_common():
        yield sentence.replace("|", "/"), f"{count:,}"


def _judge_all(pool: Executor, blocks: Sequence[int], limit_s: float) -> tuple[Judged, Failed]:
    """Train the jobs of some blocks, as many as there is time for; print each failure."""
    begun_s = time.monotonic()
    judged: Judged = []
    failed: Failed = {}
    for done in pool.map(block, blocks):
        seconds = time.monotonic() - begun_s
        for recipe, verdict in done:
            judged.append((recipe, verdict))
            if verdict.kind == "fails":
                failed.setdefault(_kind_of(verdict), recipe)
                text = f"job {len(judged)}, {seconds:.0f} s: {verdict.why}\n  {recipe}"
                print(text, flush=True)
        if seconds > limit_s:
            break
    return judged, failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; returns the exit code."""
    parser = argparse.ArgumentParser(prog="fuzz_jobs", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--jobs", type=int, default=20_000, metavar="N")
    parser.add_argument("--minutes", type=float, default=600.0, metavar="N", help="end after these")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the first block")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE}")
    chosen = parser.parse_args(arguments)
    blocks = range(chosen.seed, chosen.seed + -(-chosen.jobs // BLOCK))
    begun_s = time.monotonic()
    with ProcessPoolExecutor(chosen.processes, mp_context=get_context("spawn")) as pool:
        judged, failed = _judge_all(pool, blocks, 60 * chosen.minutes)
        text = tables(judged, time.monotonic() - begun_s)
        kinds = list(failed)
        for small, kind in zip(pool.map(smallest, failed.values(), kinds), kinds, strict=True):
            print(f"smallest: {kind}\n  {small}", flush=True)
    print(text)
    if chosen.write:
        put_into(PAGE, "training jobs by chance", "scripts.fuzz_jobs", text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
