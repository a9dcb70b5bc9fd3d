"""dtd as an administrator has it: a virtual environment in /opt/dtd, with dtd installed in it.

dtd itself is built from the checkout as for a package index, so that what the package lacks is
missing here too.  What it needs is not copied: the environment that runs this script lends its
packages and its interpreter, which hosts see below /opt and read only, because services are not
shown what lies in somebody's home.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from typing import Final

from dtd.errors import DtdError

PLACE: Final = Path("/opt/dtd")
_PACKAGES: Final = Path("/opt/dtd-packages")
_PYTHON: Final = Path("/opt/dtd-python")
_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_SOURCES: Final = ("dtd", "systemd", "docs/examples", "pyproject.toml", "setup.py")
_TEXTS: Final = ("README.md", "LICENSE")
_BUILD: Final = "import setuptools.build_meta as b; b.build_wheel('.')"
_BUILD_S: Final = 120.0
_SCRIPT: Final = """#!{python}
import sys
from {module} import {function}
sys.exit({function}())
"""


class Environment:
    """Made once, for all hosts.

    Args:
        directory: empty; where it is kept on this machine.

    Attributes:
        binds: the directories of this machine that a host must see, by its own path.

    Raises:
        DtdError: the package cannot be built.
    """

    def __init__(self, directory: Path) -> None:
        self._home = directory / "dtd"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        own_packages = self._home / "lib" / version / "site-packages"
        own_packages.mkdir(parents=True)
        self._make_interpreter(version)
        with zipfile.ZipFile(_wheel(directory / "build")) as wheel:
            wheel.extractall(own_packages)
        # Searched after dtd's own; .pth files in there, as of the checkout itself, do not count.
        (own_packages / "lent.pth").write_text(f"{_PACKAGES}\n", "utf-8")
        self._make_scripts()
        self.binds = {
            PLACE: self._home,
            _PACKAGES: Path(sysconfig.get_path("platlib")),
            _PYTHON: Path(sys.base_prefix),
        }

    def _make_interpreter(self, version: str) -> None:
        """Make the files of `python -m venv`, for their final place."""
        programs = self._home / "bin"
        programs.mkdir()
        for name in ("python", "python3", version):
            (programs / name).symlink_to(_PYTHON / "bin" / version)
        settings = f"home = {_PYTHON / 'bin'}\ninclude-system-site-packages = false\n"
        (self._home / "pyvenv.cfg").write_text(settings, "utf-8")

    def _make_scripts(self) -> None:
        project = tomllib.loads((_CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
        for name, entry in project["scripts"].items():
            module, _, function = entry.partition(":")
            script = self._home / "bin" / name
            python = PLACE / "bin/python"
            script.write_text(
                _SCRIPT.format(python=python, module=module, function=function), "utf-8"
            )
            script.chmod(0o755)


def library_settings() -> str:
    """Lines for ld.so.conf: an interpreter with a shared library looks for it where it was made."""
    return f"{_PYTHON / 'lib'}\n"


def _wheel(directory: Path) -> Path:
    """The package, built from a copy of the checkout."""
    for source in (*_SOURCES, *_TEXTS):
        target = directory / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (_CHECKOUT / source).is_dir():
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(_CHECKOUT / source, target, ignore=unwanted)
        else:
            shutil.copy(_CHECKOUT / source, target)
    built = subprocess.run(
        [sys.executable, "-c", _BUILD],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=_BUILD_S,
    )
    wheels = list(directory.glob("*.whl"))
    if built.returncode != 0 or not wheels:
        raise DtdError(f"the package cannot be built: {' '.join(built.stderr.split())[-600:]}")
    return wheels[0]
