"""A request, its answer, and the two forms in which it is shown."""

from __future__ import annotations

import pytest

from dtd.ctl.answers import ask, ask_and_show, show
from dtd.ctl.settings import Settings
from dtd.errors import RequestRefused
from dtd.wire import messages as m

ANSWER = {"name": "worker-é", "steps": [1, 2]}


@pytest.fixture
def settings_as(server):
    def make(*, as_json):
        return Settings(addresses=(server.control,), credential=None, as_json=as_json)

    return make


def test_the_answer_to_one_request(server, settings_as, result):
    server.script = lambda _message: result(ANSWER)
    assert ask(settings_as(as_json=False), m.ListJobs()) == ANSWER
    assert server.received == [m.ListJobs()]


def test_json_is_the_answer_as_it_came_and_says_no_words(settings_as, capsys):
    told = []
    show(settings_as(as_json=True), ANSWER, told.append)
    assert capsys.readouterr() == ('{"name": "worker-é", "steps": [1, 2]}\n', "")
    assert told == []


def test_without_json_the_words_are_all(settings_as, capsys):
    told = []
    show(settings_as(as_json=False), ANSWER, told.append)
    assert capsys.readouterr() == ("", "")
    assert told == [ANSWER]


def test_what_was_asked_is_shown_and_handed_on(server, settings_as, result, capsys):
    server.script = lambda _message: result(ANSWER)
    answer = ask_and_show(
        settings_as(as_json=False), m.DrainWorker(name="w"), lambda answer: print(answer["name"])
    )
    assert (answer, capsys.readouterr().out) == (ANSWER, "worker-é\n")


def test_a_refusal_is_raised_and_nothing_shown(server, settings_as, refusal, capsys):
    server.script = lambda _message: refusal
    told = []
    with pytest.raises(RequestRefused, match="job 'x' does not exist"):
        ask_and_show(settings_as(as_json=True), m.CancelJob(job="x"), told.append)
    assert (told, capsys.readouterr()) == ([], ("", ""))
