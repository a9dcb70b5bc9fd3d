"""The program `dtd-worker`, also as `python -m dtd.worker`.

It has an interpreter in which jobs can run before it imports the worker, which takes a second.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dtd.worker.process.process_state import is_fit_for_jobs, replace_process

_INSTALLATION = str(Path(__file__).parents[2])


def main() -> int:
    """Run the worker; returns the exit code."""
    given = sys.argv[1:]
    if not is_fit_for_jobs():
        environment = dict(os.environ)
        if sys.path[:1] == [_INSTALLATION]:  # `python -m` in a checkout, which is installed nowhere
            paths = (_INSTALLATION, environment.get("PYTHONPATH", ""))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        replace_process(given, environment)
    from dtd.worker.main import main as run

    return run(given)


if __name__ == "__main__":
    sys.exit(main())
