"""A name belongs to one living worker: whoever comes later under it is refused.

A process that comes from the same state directory (an equal instance) is no other worker: it holds
the lock of that directory, so the one before it is dead, however its connection may linger.  One
from elsewhere may take the name once nobody answers under it any more.  Pure questions to the
books; the refusal is the business of whoever has the connection.
"""

from __future__ import annotations

from dtd.core.books import ClusterState
from dtd.core.records import Worker
from dtd.core.transitions import GONE, MEMBERS
from dtd.wire import messages as m


def holder(books: ClusterState, message: m.Register, now: float) -> Worker | None:
    """The other worker that lives under the name of this one; None when it may have the name.

    Args:
        books: what the coordinator knows.
        message: how a worker introduces itself.
        now: the clock, in seconds.
    """
    known = books.workers.get(message.name)
    if known is None or known.state in GONE or known.incarnation == message.incarnation:
        return None
    if known.registration.instance in ("", message.instance):
        return None
    silent = books.detector.silence_s(known.name, now) > books.heartbeat_timeout_s
    # A member is evicted when the detector says so, and not while its generation commits.
    return None if silent and known.state not in MEMBERS else known
