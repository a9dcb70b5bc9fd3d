"""After a loss of power there is the checkpoint before, or the whole new one.

The system calls of a writer are recorded with what each of them makes durable.  After every one of
them the disk is asked twice: by a file system that keeps only what was synced, and by one that
keeps entries of directories at once and still only the content that was synced.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dtd.checkpoint.format import MANIFEST_FILE, checkpoint_name
from dtd.checkpoint.retention import Rules
from dtd.checkpoint.tensor_file import MODEL_FILE, OPTIMIZER_FILE
from dtd.checkpoint.writer import CheckpointWriter, Published
from dtd.host.durable import make_directory

FILES = {MANIFEST_FILE, MODEL_FILE, OPTIMIZER_FILE}


@dataclass
class Disk:
    """The survivors, by inode; `eager`: entries survive before their directory is synced."""

    root: Path
    eager: bool
    entries: dict[int, dict[str, int]] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)

    def entered(self, path: Path) -> None:
        """A name was given to something."""
        if self.eager:
            names = self.entries.setdefault(path.parent.stat().st_ino, {})
            names[path.name] = path.stat().st_ino

    def left(self, path: Path) -> None:
        """A name was taken away."""
        if self.eager:
            self.entries.get(path.parent.stat().st_ino, {}).pop(path.name, None)

    def synced(self, path: Path) -> None:
        """fsync has returned."""
        inode = path.stat().st_ino
        if path.is_dir():
            self.entries[inode] = {one.name: one.stat().st_ino for one in path.iterdir()}
        else:
            self.contents[inode] = path.read_bytes()

    def after_the_loss(self, path: Path) -> dict[str, bytes] | None:
        """Files below a directory; None when it cannot be found."""
        inode = self.root.stat().st_ino
        for name in path.relative_to(self.root).parts:
            found = self.entries.get(inode, {}).get(name)
            if found is None:
                return None
            inode = found
        named = self.entries.get(inode, {})
        return {name: self.contents.get(one, b"") for name, one in named.items()}


class Recorder:
    """Lets system calls through, and asks a question after each that changes what survives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.disks = [Disk(root, eager=False), Disk(root, eager=True)]
        self.ask = lambda: None
        self.calls: list[str] = []
        for name in ("mkdir", "rename", "fsync"):
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, call: Any) -> Any:
        def watched(*arguments: Any, **options: Any) -> None:
            if name == "rename":
                for disk in self.disks:
                    disk.left(Path(arguments[0]))
            if name == "fsync":
                path = Path(f"/proc/self/fd/{arguments[0]}").readlink()
            else:
                path = Path(arguments[-1] if name == "rename" else arguments[0])
            call(*arguments, **options)
            for disk in self.disks:
                disk.synced(path) if name == "fsync" else disk.entered(path)
            self.calls.append(name)
            self.ask()

        return watched


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorder:
    return Recorder(monkeypatch, tmp_path)


def test_old_or_new_and_whole_at_every_moment(recorder, make_draft, tmp_path) -> None:
    job = tmp_path / "made" / "by" / "nobody" / "job-1.0123456789"
    writer = CheckpointWriter(job, Rules(keep=9))
    targets = [job / checkpoint_name(1, step) for step in (1, 2)]
    done: list[Path] = []
    torn: list[str] = []

    def look() -> None:
        for disk in recorder.disks:
            for target in targets:
                found = disk.after_the_loss(target)
                whole = found is not None and found.keys() == FILES and all(found.values())
                if not whole and (found is not None or target in done):
                    state = "nothing" if found is None else sorted(k for k, v in found.items() if v)
                    torn.append(f"{target.name} after {len(recorder.calls)} calls: {state}")

    recorder.ask = look
    for step, target in enumerate(targets, 1):
        writer.write(make_draft(step))
        writer.publish({})
        writer.flush()
        (published,) = writer.finished()
        assert isinstance(published, Published)
        done.append(target)
        look()
    writer.close()
    assert torn == []
    for disk in recorder.disks:
        for target in targets:
            expected = {one.name: one.read_bytes() for one in target.iterdir()}
            assert disk.after_the_loss(target) == expected


def test_every_directory_on_the_way_survives(recorder, tmp_path) -> None:
    path = tmp_path / "a" / "b" / "c"
    make_directory(path, mode=0o700)
    assert recorder.disks[0].after_the_loss(path) == {}
    assert path.stat().st_mode & 0o777 == 0o700
    assert path.parent.stat().st_mode & 0o700 == 0o700
