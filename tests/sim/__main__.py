"""Run simulations from the command line.

`python -m tests.sim SEED ...` prints what happens in the random plan of each seed;
`python -m tests.sim FILE ...` runs the stories in these files and rewrites the files;
`python -m tests.sim --seeds FIRST:END [--jobs N]` runs many plans and names those that fail;
`--shards` with either: plans of jobs whose state is sharded;
`--beside` with either: plans of several jobs beside each other, with `--shards` of sharded ones;
`python -m tests.sim --judge SECONDS [--first WHAT]` runs until a rule is broken, and prints JSON.
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
    """Run the command; returns 1 if a plan of `--seeds` fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Run simulations.")
    parser.add_argument("what", nargs="*", metavar="SEED|FILE", help="a plan or a story to tell")
    parser.add_argument("--seeds", metavar="FIRST:END", help="run these plans, END not included")
    parser.add_argument("--shards", action="store_true", help="plans of sharded jobs")
    parser.add_argument("--beside", action="store_true", help="plans of several jobs at once")
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
            _tell_plan(int(what), sharded=parsed.shards, beside=parsed.beside)
        else:
            Path(what).write_text(story.tell(Path(what).read_text()))
    if not parsed.seeds:
        return 0
    return _run_many(parsed.seeds, parsed.jobs, sharded=parsed.shards, beside=parsed.beside)


def _tell_plan(seed: int, *, sharded: bool, beside: bool) -> None:
    cluster = (plans.draw_beside if beside else plans.draw)(seed, sharded=sharded)
    try:
        cluster.run()
    finally:
        sys.stdout.write("\n".join([f"seed {seed}", *cluster.story, ""]))


def _run_many(seeds: str, jobs: int, *, sharded: bool, beside: bool) -> int:
    first, _, end = seeds.partition(":")
    played = []
    chosen = range(int(first), int(end))
    for one in many.play_all(chosen, jobs=jobs, sharded=sharded, beside=beside):
        played.append(one)
        if one.failure:
            sys.stdout.write(f"seed {one.seed}: {one.failure}\n")
            sys.stdout.flush()
    sys.stdout.write(many.summary(played) + "\n")
    return 1 if any(one.failure for one in played) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
