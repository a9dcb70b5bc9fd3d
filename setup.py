"""Build steps that pyproject.toml cannot express: two folders become data of the package.

systemd/ becomes dtd/units and docs/examples/ becomes dtd/examples in what is built; from a checkout
both are used where they lie.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = {"systemd": "units", "docs/examples": "examples"}


class BuildWithData(build_py):
    """Copies the two folders beside the modules."""

    def run(self) -> None:
        """Build, unless the checkout itself is installed (`pip install -e`)."""
        super().run()
        if self.editable_mode:
            return
        for source, name in SHIPPED.items():
            for file in sorted(Path(source).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    target = Path(self.build_lib, "dtd", name, file.relative_to(source))
                    self.mkpath(str(target.parent))
                    self.copy_file(str(file), str(target))


setup(cmdclass={"build_py": BuildWithData})
