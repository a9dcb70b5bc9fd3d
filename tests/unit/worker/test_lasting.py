from __future__ import annotations

import gc
import weakref

import pytest

from dtd.worker.lasting import leave_out_what_is_there, made_to_last


@pytest.fixture(autouse=True)
def thawed():
    yield
    gc.unfreeze()
    gc.enable()


def test_what_is_made_inside_is_looked_at_no_more() -> None:
    before = gc.get_freeze_count()
    with made_to_last():
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(kept)


def test_an_import_that_fails_leaves_the_collector_as_it_was() -> None:
    with pytest.raises(ImportError), made_to_last():
        import nothing_of_this_name  # noqa: F401
    assert gc.isenabled()
    gc.disable()
    with made_to_last():
        pass
    assert not gc.isenabled()


def test_what_is_there_is_looked_at_no_more_except_garbage() -> None:
    class Loop:
        pass

    kept, garbage = Loop(), Loop()
    garbage.itself = garbage
    gone = weakref.ref(garbage)
    del garbage
    leave_out_what_is_there()
    assert gone() is None
    assert not any(one is kept for one in gc.get_objects())
