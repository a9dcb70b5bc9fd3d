"""Whose connection is whose, and what becomes of two processes with one name."""

from __future__ import annotations

import dataclasses

from dtd.coordinator.worker_links import WorkerLinks
from dtd.wire import messages as m


class PlayedLink:
    """Remembers why it was ended."""

    identity = None

    def __init__(self) -> None:
        self.errors: list[str] = []

    def fail(self, error) -> None:
        self.errors.append(error.message)


def registering(incarnation: int, host: str) -> m.Register:
    return m.Register(
        name="w",
        incarnation=incarnation,
        pid=incarnation,
        host=host,
        device="cpu",
        data_host="h",
        data_port=1,
        version="0",
    )


def test_the_newest_process_takes_the_name_and_one_that_comes_back_is_told_why() -> None:
    links, first, second = WorkerLinks(), PlayedLink(), PlayedLink()
    one, other = registering(1, "host1"), registering(2, "host2")
    assert links.clash(one) is None
    links.register(first, one, 0.0)
    assert links.clash(other) is None
    links.register(second, other, 0.0)
    assert first.errors == ["another worker registered as w"]
    clash = links.clash(one)
    assert clash is not None
    assert clash.message == (
        "two workers use the name w: one on host2 (pid 2), one on host1 (pid 1)"
    )
    links.forget(second)
    assert links.clash(one) is None


def test_a_process_that_merely_calls_again_clashes_with_nobody() -> None:
    links, first, second = WorkerLinks(), PlayedLink(), PlayedLink()
    links.register(first, registering(1, "host1"), 0.0)
    assert links.clash(registering(1, "host1")) is None
    links.register(second, registering(1, "host1"), 0.0)
    assert links.clash(registering(1, "host1")) is None
    assert links.incarnation("w") == 1


def test_a_workers_clock_goes_on_from_what_its_process_said() -> None:
    links, link = WorkerLinks(), PlayedLink()
    assert links.clock_s("w", 500.0) == 0.0
    links.register(link, dataclasses.replace(registering(1, "host1"), clock_s=7.0), 500.0)
    assert links.clock_s("w", 503.0) == 10.0
    links.forget(link)
    assert links.clock_s("w", 503.0) == 0.0
