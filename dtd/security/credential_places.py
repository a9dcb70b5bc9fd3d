"""Where a credential is looked for when none is named.

Apart from what reads one: on a machine without a credential dtdctl loads no TLS.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

STAND_IN: Final = b"# none"
"""What dtd-worker@.service hands over in place of a missing credential."""


def credential_places(
    leaf: str, environ: Mapping[str, str], *, system: tuple[Path, ...]
) -> tuple[Path, ...]:
    """Where a credential is looked for when none is named, first to last.

    Args:
        leaf: the file's name, "worker.credential" or "ctl.credential".
        environ: the environment.
        system: whole paths of this machine's own.
    """
    places = []
    if environ.get("CREDENTIALS_DIRECTORY"):
        places.append(Path(environ["CREDENTIALS_DIRECTORY"]) / leaf)
    if environ.get("HOME"):
        base = environ.get("XDG_CONFIG_HOME") or str(Path(environ["HOME"]) / ".config")
        places.append(Path(base) / "dtd" / leaf)
    return (*places, *system)


def find_credential(places: tuple[Path, ...]) -> Path | None:
    """The first of the places with a file that this user can read.

    Where root has none, the unit of a worker hands over a stand-in, which does not count.
    """
    return next((place for place in places if _is_there(place)), None)


def _is_there(place: Path) -> bool:
    if not os.access(place, os.R_OK):
        return False
    with place.open("rb") as file:
        return file.read(2 * len(STAND_IN)).strip() != STAND_IN
