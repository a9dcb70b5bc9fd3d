"""Answers for everybody are looked up once, soon again, and failures are not kept."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dtd.errors import RequestRefused
from dtd.observe.web import live as shared
from dtd.observe.web.live import SharedAnswers
from dtd.wire import messages as m


class Asked:
    def __init__(self) -> None:
        self.times = 0
        self.fails = False
        self.go_on = asyncio.Event()

    async def look(self, message: m.Message) -> dict[str, Any]:
        self.times += 1
        await self.go_on.wait()
        if self.fails:
            raise RequestRefused("no")
        return {"times": self.times, "what": m.message_name(type(message))}


async def test_many_ask_at_once_and_one_looks() -> None:
    asked = Asked()
    answers = SharedAnswers(asked.look)
    bodies = [asyncio.create_task(answers.body(m.ListJobs())) for _ in range(20)]
    await asyncio.sleep(0)
    asked.go_on.set()
    assert {json.loads(await body)["times"] for body in bodies} == {1}
    assert json.loads(await answers.body(m.ListJobs()))["times"] == 1
    assert json.loads(await answers.body(m.GetStatus()))["times"] == 2
    answers.close()


async def test_an_answer_gets_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "FRESH_S", 0.0)
    asked = Asked()
    asked.go_on.set()
    answers = SharedAnswers(asked.look)
    await answers.body(m.ListJobs())
    await answers.body(m.ListJobs())
    assert asked.times == 2


async def test_a_failure_is_told_and_not_kept() -> None:
    asked = Asked()
    asked.go_on.set()
    asked.fails = True
    answers = SharedAnswers(asked.look)
    for _ in range(2):
        with pytest.raises(RequestRefused):
            await answers.body(m.ListJobs())
    assert asked.times == 2
