import random

import pytest

from tests.sim.network import Network, Port
from tests.sim.scheduler import Scheduler


class Peer:
    """A process that keeps what it hears."""

    def __init__(self) -> None:
        self.port: Port | None = None
        self.heard: list[object] = []
        self.ended: list[str] = []
        self.takes = True

    def accept(self, port: Port, greeting: object) -> bool:
        if greeting == "go away":
            return False
        self.port = port
        port.receive, port.closed = self.receive, self.ended.append
        return True

    def receive(self, content: object) -> bool:
        if self.takes:
            self.heard.append(content)
        return self.takes


class Wire:
    """Two processes, a and b, and a connection from a to b."""

    def __init__(self, greeting: object = "hello", *, listening: bool = True) -> None:
        self.scheduler = Scheduler()
        self.network = Network(
            self.scheduler,
            random.Random(1),
            random.Random(2),
            latency_s=(0.1, 0.2),
            bytes_per_s=1000.0,
        )
        self.a, self.b = Peer(), Peer()
        if listening:
            self.network.listen("b", self.b)
        self.port = self.network.connect(
            "a", "b", greeting, receive=self.a.receive, closed=self.a.ended.append
        )

    def wait(self, seconds: float = 10.0) -> None:
        self.scheduler.run(until_s=self.scheduler.now + seconds, done=lambda: False)


@pytest.fixture
def wire() -> Wire:
    return Wire()


def test_everything_arrives_in_order_however_late_each_piece_is(wire: Wire) -> None:
    for number in range(50):
        wire.port.send(number)
    wire.wait()
    assert wire.b.heard == list(range(50))


def test_both_directions_carry(wire: Wire) -> None:
    wire.wait()
    assert wire.b.port is not None
    wire.b.port.send("back")
    wire.wait()
    assert wire.a.heard == ["back"]


def test_large_content_takes_its_time(wire: Wire) -> None:
    wire.port.send("large", 5000)
    wire.wait()
    assert wire.b.heard == ["large"]
    assert 5.1 <= wire.scheduler.now <= 5.3


@pytest.mark.parametrize("wire", [Wire("go away"), Wire(listening=False)])
def test_refused_connection_ends(wire: Wire) -> None:
    wire.wait()
    assert wire.a.ended == ["connection refused"]
    wire.port.send("into the void")
    wire.wait()
    assert wire.b.heard == []


def test_dying_process_is_heard_to_the_end(wire: Wire) -> None:
    wire.port.send("last words")
    wire.network.vanish("a")
    wire.wait()
    assert (wire.b.heard, wire.b.ended) == (["last words"], ["connection closed by peer"])
    assert wire.a.ended == []


def with_lifeline(wire: Wire) -> list[str]:
    """Give the two a lifeline, held by a; how it ends is kept."""
    ended: list[str] = []
    stream, wire.b.port = wire.b.port, None
    wire.network.connect(
        "a", "b", "lifeline", receive=wire.a.receive, closed=wire.a.ended.append, lifeline=True
    )
    wire.wait()
    lifeline, wire.b.port = wire.b.port, stream
    assert lifeline is not None
    lifeline.closed = ended.append
    return ended


def test_lifeline_of_a_killed_process_ends_before_its_other_streams(wire: Wire) -> None:
    wire.wait()
    ended = with_lifeline(wire)
    wire.network.kill("a", lifelines_s=1.0, streams_s=60.0)
    wire.port.send("a dead process says nothing")
    wire.wait()
    assert (ended, wire.b.ended) == (["connection closed by peer"], [])
    wire.wait(60.0)
    assert (wire.b.heard, wire.b.ended) == ([], ["connection closed by peer"])


def test_streams_of_a_killed_process_end_once_before_the_next_one_starts(wire: Wire) -> None:
    wire.wait()
    wire.network.kill("a", lifelines_s=60.0, streams_s=60.0)
    wire.network.listen("a", Peer())
    wire.wait()
    assert wire.b.ended == ["connection closed by peer"]
    wire.wait(100.0)
    assert wire.b.ended == ["connection closed by peer"]


def test_lifelines_can_be_reset_alone(wire: Wire) -> None:
    wire.wait()
    ended = with_lifeline(wire)
    wire.network.reset("a", "b", lifelines_only=True)
    wire.port.send("goes on")
    wire.wait()
    assert (ended, wire.b.heard) == (["connection reset"], ["goes on"])


def test_stalled_link_delivers_later_and_the_other_direction_goes_on(wire: Wire) -> None:
    wire.wait()
    assert wire.b.port is not None
    wire.network.stall("a", "b")
    wire.port.send("late")
    wire.b.port.send("in time")
    wire.wait()
    assert (wire.b.heard, wire.a.heard) == ([], ["in time"])
    wire.network.release("a", "b")
    assert wire.b.heard == ["late"]


def test_release_of_a_link_that_is_not_stalled_changes_nothing(wire: Wire) -> None:
    wire.network.release("a", "b")
    wire.network.unpause("b")
    wire.wait()
    assert wire.b.port is not None


def test_paused_process_hears_everything_when_it_wakes_up(wire: Wire) -> None:
    wire.wait()
    wire.network.pause("b")
    wire.port.send(1)
    wire.port.send(2)
    wire.wait()
    assert wire.b.heard == []
    wire.network.unpause("b")
    assert wire.b.heard == [1, 2]


def test_reset_loses_what_is_under_way_and_tells_both(wire: Wire) -> None:
    wire.wait()
    wire.port.send("lost")
    wire.network.reset("b", "a")
    wire.network.reset("b", "a")
    wire.wait()
    assert wire.b.heard == []
    assert (wire.a.ended, wire.b.ended) == (["connection reset"], ["connection reset"])


def test_content_whose_turn_has_not_come_is_offered_again(wire: Wire) -> None:
    wire.b.takes = False
    wire.port.send(1)
    wire.port.send(2)
    wire.port.close("done")
    wire.wait()
    assert (wire.b.heard, wire.b.ended) == ([], [])
    wire.b.takes = True
    assert wire.b.port is not None
    wire.b.port.resume()
    assert (wire.b.heard, wire.b.ended) == ([1, 2], ["done"])


def test_resume_from_within_does_not_change_the_order(wire: Wire) -> None:
    wire.wait()
    port = wire.b.port
    assert port is not None

    def receive(content: object) -> bool:
        port.resume()
        wire.b.heard.append(content)
        return True

    port.receive = receive
    wire.network.pause("b")
    for number in range(3):
        wire.port.send(number)
    wire.wait()
    wire.network.unpause("b")
    assert wire.b.heard == [0, 1, 2]


def test_end_that_nobody_listens_for_is_no_error() -> None:
    wire = Wire()
    wire.b.accept = lambda port, greeting: True  # type: ignore[method-assign]
    wire.port.send("unheard")
    wire.port.close("done")
    wire.wait()
    assert wire.b.heard == []
