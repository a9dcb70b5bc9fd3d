"""`dtdctl compare`, `tag` and `note` against a scripted coordinator."""

from __future__ import annotations

import pytest

from dtd.wire import messages as m


def job(number, **changed):
    return {
        "id": f"digits-{number}",
        "name": "digits",
        "task": "digits",
        "state": "done",
        "step": 20,
        "total_steps": 20,
        "tags": [],
        "note": "",
        "submitted_s": 1.0,
        "started_s": 2.0,
        "ended_s": 44.0,
        "result": {"train_loss": 0.5},
        **changed,
    }


ANSWER = {
    "jobs": [job(1), job(2, tags=["a", "b"], note="n" * 50, started_s=None)],
    "differences": [
        {"of": "setting", "key": "optimizer.lr", "values": [0.1, 0.2]},
        {"of": "code", "key": "package", "values": ["", "ab" * 32]},
    ],
    "figures": [
        {
            "name": "loss",
            "lower_is_better": True,
            "of": [{"last": 2.0, "best": 0.5, "begin": 3, "end": 4}, None],
        },
        {
            "name": "eval/accuracy",
            "lower_is_better": False,
            "of": [None, {"last": 0.5, "best": 0.75, "begin": 10, "end": 10}],
        },
    ],
    "curves": [
        {"name": "loss", "kind": "steps", "of": [[[1, 4.0], [20, 1.0]], []]},
        {"name": "eval/accuracy", "kind": "evaluations", "of": [[], []]},
    ],
}


@pytest.fixture
def compared(server, result):
    server.script = lambda _message: result(ANSWER)
    return server


def test_a_comparison_in_words(dtdctl, compared):
    code, out, err = dtdctl("compare", "digits-1", "digits-2", "--names", "loss", "--points", "9")
    assert (code, err) == (0, "")
    (asked,) = compared.received
    assert asked == m.CompareJobs(jobs=("digits-1", "digits-2"), names=("loss",), points=9)
    lines = [line.split() for line in out.splitlines()]
    assert lines[:6] == [
        ["digits-1", "digits-2"],
        ["state", "done", "done"],
        ["step", "20/20", "(100%)", "20/20", "(100%)"],
        ["took", "42s", "-"],
        ["tags", "-", "a", "b"],
        ["note", "-", "n" * 37 + "..."],
    ]
    assert lines[7:10] == [
        ["DIFFERS", "digits-1", "digits-2"],
        ["setting", "optimizer.lr", "0.1", "0.2"],
        ["code", "package", "-", "ab" * 6],
    ]
    assert lines[12:16] == [
        ["loss", "last", "2", "-"],
        ["lowest", "0.5", "at", "3-4", "-"],
        ["eval/accuracy", "last", "-", "0.5"],
        ["highest", "-", "0.75", "at", "10"],
    ]
    assert lines[17] == ["loss", "1", "to", "4,", "step", "0", "to", "20"]
    assert lines[18][0] == "digits-1"
    assert lines[18][1].startswith("█")
    assert lines[18][1].endswith("▁")
    assert lines[19:] == [["digits-2"]]


def test_tags_and_notes(dtdctl, server, result, check_output):
    told = {"job": "digits-1", "tags": ["a", "b"], "note": ""}
    server.script = lambda _message: result(told)
    assert dtdctl("tag", "add", "digits-1", "a", "b") == (0, "", "tags of digits-1: a b\n")
    assert dtdctl("tag", "remove", "digits-1", "c")[0] == 0
    assert dtdctl("note", "digits-1", "")[2] == "note of digits-1: none\n"
    assert server.received == [
        m.AnnotateJob(job="digits-1", add=("a", "b")),
        m.AnnotateJob(job="digits-1", remove=("c",)),
        m.AnnotateJob(job="digits-1", note="", sets_note=True),
    ]
    for words in (("tag", "add", "digits-1", "a"), ("note", "digits-1", "x")):
        check_output(words, dtdctl(*words, "-o", "json")[1])
