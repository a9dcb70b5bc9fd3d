"""What workers say of their memory, as it is shown."""

from __future__ import annotations

from dtd.doctor.memory import PARTS, memory_of
from dtd.wire import messages as m


def part(name, measured, predicted=0):
    return m.MemoryPart(name=name, measured_bytes=measured, predicted_bytes=predicted)


def test_nothing_was_measured():
    assert memory_of(()) is None
    assert memory_of([part("gold", 5)]) is None, "no such part"


def test_known_parts_are_shown_in_their_order_and_each_once():
    said = [part("process", 9), part("optimizer", 1, 2), part("optimizer", 3, 4), part("gold", 5)]
    found = memory_of(said)
    assert found == {
        "optimizer": {"measured_bytes": 3, "predicted_bytes": 4},
        "process": {"measured_bytes": 9, "predicted_bytes": None},
    }
    assert list(found) == ["optimizer", "process"]


def test_a_prediction_of_zero_is_one_where_the_strategy_predicts():
    found = memory_of(part(name, 1, 7) for name in PARTS)
    predicted = {name for name, one in found.items() if one["predicted_bytes"] == 7}
    assert predicted == {"parameters", "gradients", "optimizer", "snapshots"}
    assert memory_of([part("optimizer", 1)])["optimizer"]["predicted_bytes"] == 0
