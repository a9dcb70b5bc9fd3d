"""What the coordinator does, in the one line that `systemctl status` shows.  Pure."""

from __future__ import annotations

from dtd.core.membership.state import ClusterState
from dtd.core.membership.transitions import GONE


def status_line(books: ClusterState) -> str:
    """The job, how many workers there are, and how many jobs wait."""
    workers = sum(worker.state not in GONE for worker in books.workers.values())
    words = [_job(books), _count(workers, "worker")]
    if books.queue:
        words.append(f"{_count(len(books.queue), 'job')} queued")
    return ", ".join(words)


def _job(books: ClusterState) -> str:
    job = books.job
    if job is None:
        return "no job"
    return f"job {job.id} {job.state.value} at step {job.step} of {job.total_steps}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
