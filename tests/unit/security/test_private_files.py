"""Files that only their owner may read."""

from __future__ import annotations

import errno
import os

import pytest

from dtd.errors import ConfigError
from dtd.security.private_files import write_private


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "run the command as the user"),
        (errno.ENOSPC, "free space"),
        (errno.EROFS, "check the directory"),
    ],
)
def test_what_helps_depends_on_why_a_file_cannot_be_written(tmp_path, monkeypatch, number, remedy):
    def fails(_descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(ConfigError, match=os.strerror(number)) as caught:
        write_private(tmp_path / "file", b"content")
    assert remedy in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_its_owner_may_read_a_file_whatever_the_umask_is(tmp_path):
    umask = os.umask(0o777)
    try:
        write_private(tmp_path / "file", b"content")
    finally:
        os.umask(umask)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
