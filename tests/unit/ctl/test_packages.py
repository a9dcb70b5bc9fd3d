"""Files shipped with a job, files left out, and the refusals."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dtd.ctl.submit import packed_task, ship
from dtd.errors import TaskError
from dtd.packages.archive import Archive
from dtd.packages.limits import CHUNK_BYTES
from dtd.wire import messages as m


class PlayedCoordinator:
    """Takes pieces in, a few at most."""

    def __init__(self, *, have: int = 0, takes: int = 1000) -> None:
        self.got: list[tuple[int, int]] = []
        self._have = have
        self._takes = takes

    def request(self, message: m.PutPackage, payload: bytes = b"") -> dict[str, Any]:
        self.got.append((message.offset, len(payload)))
        if payload and self._takes:
            self._takes -= 1
            self._have = message.offset + len(payload)
        return {"have": self._have}


ARCHIVE = Archive(content=bytes(2 * CHUNK_BYTES + 5), digest="d" * 64, files=1)


def test_an_archive_goes_in_pieces() -> None:
    coordinator = PlayedCoordinator()
    ship(coordinator, ARCHIVE)
    pieces = [(0, CHUNK_BYTES), (CHUNK_BYTES, CHUNK_BYTES), (2 * CHUNK_BYTES, 5)]
    assert coordinator.got == [(0, 0), *pieces]


def test_an_archive_goes_on_where_it_ended_and_what_is_there_is_not_sent() -> None:
    half = PlayedCoordinator(have=2 * CHUNK_BYTES)
    ship(half, ARCHIVE)
    assert half.got == [(0, 0), (2 * CHUNK_BYTES, 5)]
    whole = PlayedCoordinator(have=len(ARCHIVE.content))
    ship(whole, ARCHIVE)
    assert whole.got == [(0, 0)]


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "jobs").mkdir()
    return tmp_path / "jobs" / "job.toml"


def test_a_task_is_looked_for_beside_its_job_then_here(job_file: Path, capsys: Any) -> None:
    (Path.cwd() / "shop_here.py").write_text("here = 1\n")
    first = packed_task("shop_here:Task", job_file)
    (job_file.parent / "shop_here.py").write_text("there = 1\n")
    second = packed_task("shop_here:Task", job_file)
    assert first is not None
    assert second is not None
    assert first.digest != second.digest
    out, err = capsys.readouterr()
    assert out == ""
    assert f"ships {job_file.parent}/shop_here.py: 1 file, " in err
    assert second.digest[:12] in err


def test_what_a_task_imports_from_its_folder_goes_along(job_file: Path, capsys: Any) -> None:
    folder = job_file.parent
    (folder / "shop_train.py").write_text("from shop_model import Net\nimport shop_nets.wide\n")
    (folder / "shop_model.py").write_text("class Net: ...\n")
    (folder / "shop_nets").mkdir()
    (folder / "shop_nets" / "wide.py").write_text("")
    (folder / "shop_nets" / "sizes.txt").write_text("5")
    archive = packed_task("shop_train:Task", job_file)
    assert archive is not None
    with tarfile.open(fileobj=io.BytesIO(archive.content)) as tar:
        assert tar.getnames() == [
            *("shop_model.py", "shop_nets/__init__.py", "shop_nets/sizes.txt"),
            *("shop_nets/wide.py", "shop_train.py"),
        ]
    shown = capsys.readouterr().err
    assert f"ships {folder}/shop_train.py, shop_model.py, shop_nets: 5 files, " in shown


@pytest.mark.parametrize(
    ("name", "whose"), [("random", "of Python's standard library"), ("dtd", "dtd itself")]
)
def test_a_module_beside_a_task_must_not_have_a_name_of_the_workers(
    job_file: Path, name: str, whose: str
) -> None:
    (job_file.parent / "shop_train.py").write_text(f"import {name}\n")
    assert packed_task("shop_train:Task", job_file) is not None
    (job_file.parent / f"{name}.py").write_text("")
    with pytest.raises(TaskError, match=rf"{name}\.py has the name of .*{whose}.*rename it"):
        packed_task("shop_train:Task", job_file)


def test_what_workers_have_is_not_shipped(job_file: Path, capsys: Any) -> None:
    assert packed_task("digits", job_file) is None
    assert packed_task("dtd.tasks.digits:Digits", job_file) is None
    assert capsys.readouterr().err == ""
    assert packed_task("pytest:Task", job_file) is None
    assert "pytest is installed here and not shipped" in capsys.readouterr().err


def test_a_task_that_is_nowhere_is_refused_with_the_places(job_file: Path) -> None:
    with pytest.raises(
        TaskError, match=r"no package or module shop_nowhere was found beside .*job\.toml"
    ):
        packed_task("shop_nowhere.a:Task", job_file)
