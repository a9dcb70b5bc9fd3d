"""A backup holds what must not be lost; what is restored leaves its jobs in doubt."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from dtd.coordinator.store.backup import back_up, restore
from dtd.coordinator.store.database import FILE_NAME
from dtd.coordinator.store.store import Store
from dtd.errors import UsageError

DIGEST = "d" * 64


@pytest.fixture
def original(state_dir: Path, store: Store) -> Store:
    """A store in use, with keys and packages beside it."""
    store.save_job(1, {"id": "j-1", "state": "running", "spec": {"job": {}}, "package": DIGEST})
    for name in ("pki/ca.key", f"packages/{DIGEST}.tar", "packages/half.part", "address"):
        (state_dir / name).parent.mkdir(exist_ok=True)
        (state_dir / name).write_text(name)
    return store


@pytest.fixture
def backup(original: Store, state_dir: Path, tmp_path: Path) -> Path:
    target = tmp_path / "backup.tar"
    assert back_up(state_dir, target) == target.stat().st_size
    return target


def files(directory: Path) -> set[str]:
    return {str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file()}


def write_tar(path: Path, *members: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, body in members:
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return path


def test_a_backup_of_a_store_in_use_is_restored_with_its_jobs_in_doubt(
    backup: Path, original: Store, tmp_path: Path
) -> None:
    original.save_job(2, {"id": "j-2", "state": "queued", "spec": {"job": {}}})
    restored = tmp_path / "restored"
    restore(backup, restored)
    expected = {FILE_NAME, "coordinator.newest", "lock", "pki/ca.key", "pki/restored.json"}
    expected |= {f"packages/{DIGEST}.tar", "audit/0000000000000000.jsonl"}
    assert files(restored) == expected
    store = Store(restored)
    assert store.identity() == original.identity()
    assert [(job.id, job.in_doubt) for _, job in store.unfinished_jobs()] == [("j-1", True)]
    assert store.packages_in_use() == {DIGEST}
    store.close()
    assert (restored / "pki/ca.key").read_text() == "pki/ca.key"


def test_nobody_else_reads_any_of_it(backup: Path, tmp_path: Path) -> None:
    assert backup.stat().st_mode & 0o777 == 0o600
    restored = tmp_path / "restored"
    restore(backup, restored)
    directories = [restored, *(path for path in restored.rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o777 for path in directories} == {0o700}
    kept = [restored / name for name in files(restored) - {"lock"}]
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.tar", "restored", "state"]


def test_a_directory_that_holds_something_is_refused(
    backup: Path, original: Store, state_dir: Path, tmp_path: Path
) -> None:
    original.close()
    with pytest.raises(UsageError, match="not empty: it holds address"):
        restore(backup, state_dir)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat").touch()
    with pytest.raises(UsageError, match="holds cat"):
        restore(backup, tmp_path / "photos")
    assert files(tmp_path / "photos") == {"cat"}


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([], "no store"),
        ([("../x", b"")], r"\.\./x"),
        ([("/etc/x", b"")], "/etc/x"),
        ([("pki/../../x", b"")], r"\.\./x"),
        ([("pki/.hidden", b"")], "hidden"),
        ([("packages/short.tar", b"")], "short"),
        ([("authorized_keys", b"")], "authorized_keys"),
        ([(FILE_NAME, b""), (FILE_NAME, b"")], "twice"),
    ],
)
def test_what_no_backup_holds_is_refused_and_leaves_nothing(
    tmp_path: Path, members: list[tuple[str, bytes]], says: str
) -> None:
    source = write_tar(tmp_path / "strange.tar", *members)
    restored = tmp_path / "deep" / "restored"
    with pytest.raises(UsageError, match=f"not a backup.*{says}"):
        restore(source, restored)
    assert files(tmp_path) == {"strange.tar", "deep/restored/lock"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_root_restores_for_the_directorys_owner(backup: Path, tmp_path: Path) -> None:
    restored = tmp_path / "restored"
    restored.mkdir(mode=0o700)
    os.chown(restored, 12345, 12345)
    restore(backup, restored)
    assert {path.stat().st_uid for path in restored.rglob("*")} == {12345}
