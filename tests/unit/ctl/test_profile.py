"""`dtdctl profile`: what is fetched from workers, merged and said."""

from __future__ import annotations

import gzip
import json

import pytest

from dtd.ctl.commands import profile
from dtd.errors import ProfileError
from dtd.observe.profile.spans import BUCKET, COMMIT, COMPUTE, STEP, WAIT, Span
from dtd.observe.profile.trace import WorkerTrace

MS = 10**6
SPANS = [
    Span(STEP, 0, 10 * MS, 4),
    Span(COMPUTE, 0, 6 * MS),
    Span(BUCKET, 4 * MS, 8 * MS, 0),
    Span(WAIT, 6 * MS, 8 * MS),
    Span(COMMIT, 9 * MS, 10 * MS),
]


def worker(name="w0", rank=0, **changed):
    usual = {
        "name": name,
        "rank": rank,
        "serves": False,
        "reason": "",
        "dropped": {"spans": 0, "operations": 0},
        "note": "",
        "clock_ahead_s": 0.5,
        "clock_uncertainty_s": 0.0002,
        "alive": True,
    }
    return {**usual, **changed}


def answer(*workers):
    return {
        "job": "j-1",
        "generation": 2,
        "file": "j-1-9",
        "encrypted": False,
        "workers": [*workers],
    }


@pytest.fixture
def asked(monkeypatch):
    """Answers of the coordinator in turn, and traces or errors of workers."""
    made = {"answers": [], "fetched": {}, "requests": []}

    def ask(settings, request, *, within_s=None):
        assert (within_s is None) == bool(request.file) or within_s > request.limit_s
        made["requests"].append(request)
        return made["answers"].pop(0)

    def fetch(one, file, scratch, connect):
        found = made["fetched"][one["name"]].pop(0)
        if isinstance(found, Exception):
            raise found
        return WorkerTrace(name=one["name"], rank=one["rank"], spans=found)

    monkeypatch.setattr(profile, "ask", ask)
    monkeypatch.setattr(profile, "_fetch", fetch)
    monkeypatch.setattr(profile, "RECONNECT_EVERY_S", 0.0)
    return made


class Settings:
    as_json = False


def run(path, capsys):
    profile.profile_job(Settings(), "j-1", path, steps=3, limit_s=9.0)
    return capsys.readouterr()


def test_what_limits_is_said_and_the_trace_is_written(asked, tmp_path, capsys):
    asked["answers"] = [answer(worker(), worker("w1", 1, reason="w1 left"))]
    asked["fetched"] = {"w0": [SPANS]}
    out, err = run(tmp_path / "t.json.gz", capsys)
    assert "without w1: w1 left" in err
    head, row, says, opened = out.splitlines()
    assert head.split() == [*profile.HEADINGS]
    assert row.split() == [
        *("w0", "10", "ms", "6", "ms", "2", "ms", "0", "ms", "1.0", "ms", "50%", "+-200", "us")
    ]
    assert says == (
        "a step takes 10 ms; limited by compute: 6 ms, 60% of it; 50% of the communication is"
        " overlapped"
    )
    assert opened.startswith(f"open {tmp_path}/t.json.gz in")
    with gzip.open(tmp_path / "t.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert "step 4" in {one["name"] for one in events}
    assert [path.name for path in tmp_path.iterdir()] == ["t.json.gz"]


@pytest.mark.parametrize("content", [b"", b"rubbish", gzip.compress(b"{", mtime=0)])
def test_a_damaged_file(tmp_path, content):
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match="the profile of w0 is damaged"):
        profile._read(path, "w0")
