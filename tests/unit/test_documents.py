"""The documents: what they tell people to install is ours, or a package that dtd itself names.

And the files that they name are there.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OTHERS = {"pillow", "uv"}  # what torchvision needs for pictures; the installer
INSTALLS = re.compile(r"\b(?:pip3?|uv pip|uv tool|pipx) install\s+([^`\n\"#;]*)")
TAKES_A_VALUE = {"--python", "--torch-backend", "-c", "--constraint", "--target", "--index-url"}


def known_packages() -> set[str]:
    requirements = list(PROJECT["dependencies"])
    for extra in PROJECT["optional-dependencies"].values():
        requirements += extra
    return {re.split(r"[<>=!~;\[ ]", one, maxsplit=1)[0].lower() for one in requirements} | OTHERS


def installed_names(text: str) -> list[str]:
    """The packages that the commands in a text install, without options and their values."""
    names = []
    for found in INSTALLS.finditer(text):
        # A message's own placeholder, `pip install {package}`, names what the user's task imports.
        words = iter(shlex.split(found[1].replace("'", ""), comments=True))
        for word in words:
            if word in TAKES_A_VALUE:
                next(words, None)
            elif not word.startswith("-") and not word.startswith("{"):
                names.append(word.rstrip(".,)"))
            if word.endswith((".", ",", ")")):
                break  # the sentence goes on
    return [name for name in names if name]


def is_a_file(name: str) -> bool:
    return name.startswith(("./", "/", "dist/"))


def texts() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "*.toml", "*.html", "dtd/*.py", "systemd/*", "docs/*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in dict.fromkeys(listed.stdout.splitlines())]


def test_no_document_installs_a_package_that_is_not_ours():
    known = known_packages()
    wrong = []
    for path in texts():
        text = path.read_text("utf-8", "replace") if path.is_file() else ""
        wrong += [
            f"{path.relative_to(ROOT)}: {name}"
            for name in installed_names(text)
            if not is_a_file(name) and name.lower() not in known
        ]
    assert not wrong


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("/opt/dtd/bin/pip install dtd\n", ["dtd"]),
        ("/opt/dtd/bin/pip install --upgrade dtd\nmore", ["dtd"]),
        ("type `pip install dtd`, then", ["dtd"]),
        ("uv pip install --python /x --torch-backend cpu ./a-1.whl", ["./a-1.whl"]),
        ('remedy="type: pip install torchvision"', ["torchvision"]),
        ('f"type: pip install {package}; what"', []),
    ],
)
def test_the_check_reads_commands(text, names):
    assert installed_names(text) == names


def test_the_distribution_has_a_name_of_its_own():
    assert PROJECT["name"] == "distributed-training-daemon"
    assert "dtd" not in known_packages()


@pytest.mark.parametrize("document", ["SECURITY.md", "docs/operations.md"])
def test_the_files_that_a_document_names_are_there(document):
    """A defence counts with the test that tries it."""
    text = (ROOT / document).read_text("utf-8")
    named = set(re.findall(r"`((?:tests|dtd|scripts|systemd)/[\w/.@-]+\.\w+)`", text))
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
    assert any(name.startswith("tests/") for name in named) or document != "SECURITY.md"
