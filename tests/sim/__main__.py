"""Run simulations from the command line.

`python -m tests.sim SEED ...` tells what happens in the random plan of each seed;
`python -m tests.sim FILE ...` tells the stories in these files again, and writes them back;
`python -m tests.sim --seeds FIRST:END [--jobs N]` runs many plans and names those that fail;
`python -m tests.sim --judge SECONDS [--first WHAT]` plays until a rule is broken; says it as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from itertools import count
from pathlib import Path

from tests.sim import many, plans, story
from tests.sim.judge import judge


def main(arguments: list[str]) -> int:
    """Do what the module says; 1 when a plan of many fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Run simulations.")
    parser.add_argument("what", nargs="*", metavar="SEED|FILE", help="a plan or a story to tell")
    parser.add_argument("--seeds", metavar="FIRST:END", help="run these plans, END not included")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default 1)")
    parser.add_argument("--judge", type=float, metavar="SECONDS", help="play until a rule breaks")
    parser.add_argument(
        "--first", default="", metavar="WHAT", help="the story or seed to begin with"
    )
    parsed = parser.parse_args(arguments)
    if parsed.judge:
        verdict = judge(count(), first=parsed.first, most_s=parsed.judge)
        sys.stdout.write(json.dumps(asdict(verdict)) + "\n")
        return 0
    for what in parsed.what:
        if what.isdigit():
            _tell_plan(int(what))
        else:
            Path(what).write_text(story.tell(Path(what).read_text()))
    return _run_many(parsed.seeds, parsed.jobs) if parsed.seeds else 0


def _tell_plan(seed: int) -> None:
    cluster = plans.draw(seed)
    try:
        cluster.run()
    finally:
        sys.stdout.write("\n".join([f"seed {seed}", *cluster.story, ""]))


def _run_many(seeds: str, jobs: int) -> int:
    first, _, end = seeds.partition(":")
    played = []
    for one in many.play_all(range(int(first), int(end)), jobs=jobs):
        played.append(one)
        if one.failure:
            sys.stdout.write(f"seed {one.seed}: {one.failure}\n")
            sys.stdout.flush()
    sys.stdout.write(many.summary(played) + "\n")
    return 1 if any(one.failure for one in played) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
