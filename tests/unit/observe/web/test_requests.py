"""Requests in URLs, and those that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.errors import RequestRefused
from dtd.observe.web import routes as requests
from dtd.wire import messages as m


@pytest.mark.parametrize("text", ["-1", "x", "1.5", "٣", "9" * 30, "99999999999999999"])
def test_a_number_that_is_none(text: str) -> None:
    with pytest.raises(RequestRefused, match="after: must be a whole number from 0 to"):
        requests.number({"after": text}, "after", 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"what": "cancel", "job": "j"}, m.CancelJob(job="j")),
        ({"what": "drain", "worker": "w"}, m.DrainWorker(name="w")),
        (
            {"what": "alias", "model": "m", "alias": "best", "version": 2},
            m.AliasModel(name="m", alias="best", version=2),
        ),
        ({"what": "cancel-sweep", "sweep": "sweep-1"}, m.CancelSweep(sweep="sweep-1")),
        ({"what": "kill", "worker": "w"}, m.KillWorker(name="w", signal="KILL")),
    ],
)
def test_actions(given: dict[str, Any], message: m.Message) -> None:
    assert requests.action(given) == message


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "a JSON object"),
        ({}, "what: must be a text"),
        ({"what": "cancle"}, "'cancle' is no action; did you mean 'cancel'"),
        ({"what": "drain", "worker": 3}, "worker: must be a text"),
        ({"what": "submit"}, "no action"),
        ({"what": "alias", "model": "m", "alias": "a", "version": "1"}, "version: must be"),
        ({"what": "alias", "model": "m", "alias": "a", "version": 0}, "version: must be"),
    ],
)
def test_what_is_no_action(given: Any, said: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        requests.action(given)
    assert said.split(";")[0] in str(refused.value)
