"""A short fuzz run, the same each time: whatever comes, dtd answers with its own errors."""

from __future__ import annotations

import pytest

from scripts.fuzz import main, run_plain
from scripts.fuzz_targets import TARGETS, Target

RUNS = 60
FILES = {"credential", "package", "manifest"}


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_dtds_own_errors(name: str) -> None:
    runs = RUNS // 3 if name in FILES else RUNS
    counter = run_plain(TARGETS[name], seed=1, runs=runs)
    assert counter.inputs == runs
    assert counter.units >= runs


def test_a_defect_is_shown_with_its_input() -> None:
    def fails(data: bytes) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        run_plain(Target(run=fails), seed=1, runs=1)
    assert caught.value.__notes__[0].startswith("input: ")


def test_an_input_can_be_replayed(tmp_path, capsys) -> None:
    found = tmp_path / "input"
    found.write_bytes(b"10.0.0.1:99999")
    assert main(["address", "--replay", str(found)]) == 0
    assert main(["token", "--plain", "--runs", "5"]) == 0
    assert main(["--list"]) == 0
    assert "token: 5 inputs, 5 frames" in capsys.readouterr().out
