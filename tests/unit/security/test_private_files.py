"""Files that only their owner may read."""

from __future__ import annotations

import os

from dtd.security.private_files import write_private


def test_its_owner_may_read_a_file_whatever_the_umask_is(tmp_path):
    umask = os.umask(0o777)
    try:
        write_private(tmp_path / "file", b"content")
    finally:
        os.umask(umask)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
