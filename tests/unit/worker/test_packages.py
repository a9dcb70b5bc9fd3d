"""A package comes piece by piece, whatever becomes of the connection meanwhile."""

from __future__ import annotations

import hashlib
import queue
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from dtd.errors import TaskError
from dtd.packages.limits import MAX_ARCHIVE_BYTES, MAX_WEIGHTS_KEPT
from dtd.wire import messages as m
from dtd.worker.control import Requests
from dtd.worker.environment.packages import TaskPackages

PATIENCE_S = 60.0


class Fetching:
    """A fetch in a thread of its own; the test plays event loop and coordinator."""

    def __init__(self, directory: Path, digest: str, *, weights: bool = False) -> None:
        self.asked: queue.SimpleQueue[m.Message] = queue.SimpleQueue()
        self.requests = Requests(
            send=self.asked.put, post=lambda function, *given: function(*given)
        )
        self.packages = TaskPackages(directory, self.requests)
        self._weights = weights
        self.result: Future[Path] = Future()
        self._thread = threading.Thread(target=self._fetch, args=(digest,), daemon=True)
        self._thread.start()

    def _fetch(self, digest: str) -> None:
        try:
            fetch = self.packages.fetch_weights if self._weights else self.packages.fetch
            self.result.set_result(fetch(digest))
        except TaskError as error:
            self.result.set_exception(error)

    def next_asked(self) -> m.GetPackage:
        asked = self.asked.get(timeout=PATIENCE_S)
        assert isinstance(asked, m.GetPackage)
        return asked

    def give(self, asked: m.GetPackage, piece: bytes, size: int) -> None:
        answer = m.Package(digest=asked.digest, offset=asked.offset, size=size)
        self.requests.received(answer, piece)


@pytest.mark.parametrize(
    ("piece", "size", "says"),
    [
        (b"", 0, "does not have the content"),
        (b"", 10, "delivers 0 of 10"),
        (b"12345", 4, "delivers 5 of 4"),
        (b"1", MAX_ARCHIVE_BYTES + 1, "delivers 1 of"),
        (b"12345", 5, "damaged"),
    ],
)
def test_an_answer_that_leads_nowhere_fails_the_job(
    tmp_path: Path, piece: bytes, size: int, says: str
) -> None:
    digest = hashlib.sha256(b"whole").hexdigest()
    fetching = Fetching(tmp_path / "packages", digest)
    fetching.give(fetching.next_asked(), piece, size)
    with pytest.raises(TaskError, match=says):
        fetching.result.result(PATIENCE_S)


def test_a_name_that_is_no_digest_is_never_asked_for(tmp_path: Path) -> None:
    fetching = Fetching(tmp_path / "packages", "../../etc")
    with pytest.raises(TaskError, match="sha256"):
        fetching.result.result(PATIENCE_S)
    assert fetching.asked.empty()


def test_a_file_of_weights_is_written_as_it_comes(tmp_path: Path) -> None:
    content = bytes(range(200))
    digest = hashlib.sha256(content).hexdigest()
    for number in range(6):  # of earlier jobs
        old = tmp_path / "weights" / f"{number}.safetensors"
        old.parent.mkdir(exist_ok=True)
        old.write_bytes(b"old")
    fetching = Fetching(tmp_path / "packages", digest, weights=True)
    for start in (0, 150):
        asked = fetching.next_asked()
        assert (asked.kind, asked.offset) == ("weights", start)
        fetching.give(asked, content[start : start + 150], len(content))
    whole = fetching.result.result(PATIENCE_S)
    assert whole.read_bytes() == content
    assert len(list(whole.parent.iterdir())) == MAX_WEIGHTS_KEPT
    again = Fetching(tmp_path / "packages", digest, weights=True)
    assert again.result.result(PATIENCE_S) == whole
    assert again.asked.empty()


def test_damaged_weights_are_fetched_again_and_never_kept(tmp_path: Path) -> None:
    content = b"weights"
    digest = hashlib.sha256(content).hexdigest()
    fetching = Fetching(tmp_path / "packages", digest, weights=True)
    fetching.give(fetching.next_asked(), b"damaged", len(content))
    with pytest.raises(TaskError, match="damaged"):
        fetching.result.result(PATIENCE_S)
    assert list((tmp_path / "weights").iterdir()) == []
    (tmp_path / "weights" / f"{digest}.safetensors").write_bytes(b"flipped")
    again = Fetching(tmp_path / "packages", digest, weights=True)
    again.give(again.next_asked(), content, len(content))
    assert again.result.result(PATIENCE_S).read_bytes() == content
