"""Run a simulation from the command line.

`python -m dtd.sim SEED ...` tells what happens in the random plan of each seed;
`python -m dtd.sim FILE ...` tells the stories in these files again, and writes them back.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dtd.sim import plans, story


def main(arguments: list[str]) -> None:
    """Do what the module says."""
    for argument in arguments:
        if argument.isdigit():
            _run_plan(int(argument))
        else:
            path = Path(argument)
            path.write_text(story.tell(path.read_text()))


def _run_plan(seed: int) -> None:
    cluster = plans.draw(seed)
    try:
        cluster.run()
    finally:
        sys.stdout.write("\n".join([f"seed {seed}", *cluster.story, ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
