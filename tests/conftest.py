"""Fixtures for real data: looked for in $DTD_TEST_DATA, else in ../shared/data.

Property tests have no deadline per example: a busy machine is not a failure.
"""

from __future__ import annotations

import json
import os
import signal
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

settings.register_profile("dtd", deadline=None)
settings.load_profile("dtd")

# A shell starts what it runs in the background with SIGINT ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_GROUPS = ("token", "tag", "models", "sweep")
"""Commands of which the second word is part of the name."""
_REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """Directory with the real data that tests use; skips where there is none."""
    directory = Path(os.environ.get("DTD_TEST_DATA", _REPOSITORY.parent / "shared" / "data"))
    if not directory.is_dir():
        pytest.skip(f"no test data in {directory}; set DTD_TEST_DATA")
    return directory


@pytest.fixture(scope="session")
def check_output() -> Callable[[Sequence[str], str], None]:
    """Holds what a command line of dtdctl printed as JSON against docs/output.schema.json."""
    documents = _REPOSITORY / "docs"
    schemas = {
        name: json.loads((documents / name).read_text("utf-8"))
        for name in ("output.schema.json", "status.schema.json")
    }
    registry: Registry = Registry().with_resources(
        [(name, Resource.from_contents(schema)) for name, schema in schemas.items()]
    )

    def check(arguments: Sequence[str], printed: str) -> None:
        words = [word for word in arguments if word not in ("-o", "json")]
        command = " ".join(words[:2]) if words[0] in _GROUPS else words[0]
        schema = {"$ref": f"output.schema.json#/$defs/{command.replace(' ', '%20')}"}
        for line in printed.splitlines():
            Draft202012Validator(schema, registry=registry).validate(json.loads(line))

    return check


@pytest.fixture(scope="session")
def shakespeare(data_directory: Path) -> Path:
    """A text of 1.1 MB."""
    return _present(data_directory / "tinyshakespeare.txt")


@pytest.fixture(scope="session")
def cifar10_folder(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-10 subset as an image folder: 10,000 images in train/, 2,000 in test/."""
    archive = _present(data_directory / "cifar10-subset.tar")
    target = tmp_path_factory.mktemp("cifar10")
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")
    return target / "cifar10-subset"


def _present(path: Path) -> Path:
    if not path.is_file():
        pytest.skip(f"test data {path} is missing; set DTD_TEST_DATA")
    return path
