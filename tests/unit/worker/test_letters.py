"""Where workers of one user hand each other open files."""

from __future__ import annotations

import stat

import pytest
import structlog

from dtd.worker.state_directory import letter_directory


@pytest.fixture
def state_dir(tmp_path):
    made = tmp_path / "state"
    made.mkdir()
    return made


def test_it_lies_in_the_state_directory_and_is_private(state_dir):
    found = letter_directory(state_dir, {})
    assert found == state_dir / "letters"
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert letter_directory(state_dir, {}) == found


def test_what_systemd_gives_comes_first(state_dir, tmp_path):
    runtime = tmp_path / "run"
    runtime.mkdir()
    given = {"RUNTIME_DIRECTORY": f"{runtime}:/nowhere"}
    assert letter_directory(state_dir, given) == runtime / "letters"


def test_what_a_killed_process_left_is_removed(state_dir):
    (letter_directory(state_dir, {}) / "box-0").touch()
    assert list(letter_directory(state_dir, {}).iterdir()) == []


def refused(state_dir):
    with structlog.testing.capture_logs() as logs:
        assert letter_directory(state_dir, {}) is None
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("memory_not_shared", "warning")
    return line["reason"]


def test_a_directory_that_others_can_enter_is_not_used(state_dir):
    letter_directory(state_dir, {}).chmod(0o750)
    assert "users other than" in refused(state_dir)


def test_a_link_is_not_followed(state_dir, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "kept").touch()
    (state_dir / "letters").symlink_to(elsewhere)
    assert "users other than" in refused(state_dir)
    assert (elsewhere / "kept").exists()


def test_a_directory_that_cannot_be_made(tmp_path):
    assert refused(tmp_path / "missing") == "No such file or directory"
