"""The coordinator's SQLite file: one process at a time, its schema, its commits, and its thread.

Opened and locked here; what is in the tables is the business of
`dtd.coordinator.store.store`.  A *synced* transaction survives the loss of power; any other
survives the death of the process and costs no wait for the disk.  The log is folded into the file
every few seconds (`fold`), and after unsynced transactions, so that a synced one waits for that
only when there were far too few of those.

Damage is found before anything is decided by what is left.  SQLite checks its pages, but takes a
log that is cut or gone for one that ends there; so synced transactions are numbered, and the newest
number stands in a file beside the log as well.
"""

from __future__ import annotations

import asyncio
import enum
import fcntl
import functools
import itertools
import os
import queue
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import structlog

from dtd.errors import ConfigError, StoreDamaged
from dtd.host.durable import make_directory
from dtd.text.shown import counted, one_line

log = structlog.get_logger()

T = TypeVar("T")

FILE_NAME: Final = "coordinator.sqlite3"
LOCK_NAME: Final = "lock"
NEWEST_NAME: Final = "coordinator.newest"
"""Has the number of the newest synced transaction."""
LOG_PAGES: Final = 1000
MOST_LOG_PAGES: Final = 4 * LOG_PAGES
"""So long is the log at most, even where all transactions are synced: then one of them waits."""
PAGE_BYTES: Final = 4096

_NUMBER: Final = struct.Struct("<Q")
SCHEMA_VERSION: Final = 11
_SCHEMA: Final = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, body TEXT NOT NULL,
    submitted_s REAL NOT NULL, started_s REAL, ended_s REAL, deleted_s REAL
);
CREATE INDEX unfinished_jobs ON jobs (number) WHERE ended_s IS NULL;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, time_s REAL NOT NULL, kind TEXT NOT NULL,
    job TEXT NOT NULL, worker TEXT NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL,
    message TEXT NOT NULL, details TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE logs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, time_s REAL NOT NULL, job TEXT NOT NULL,
    rank INTEGER NOT NULL, worker TEXT NOT NULL, text TEXT NOT NULL
);
CREATE INDEX logs_by_job ON logs (job, seq);
CREATE TABLE checkpoints (
    job TEXT NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL, worker TEXT NOT NULL,
    size_bytes INTEGER NOT NULL, directory TEXT NOT NULL, digest TEXT NOT NULL,
    metrics TEXT NOT NULL, part TEXT NOT NULL DEFAULT '[]',
    PRIMARY KEY (job, generation, step, worker)
);
CREATE TABLE doomed (
    worker TEXT NOT NULL, directory TEXT NOT NULL, job TEXT NOT NULL, identity TEXT NOT NULL,
    generation INTEGER NOT NULL, step INTEGER NOT NULL, PRIMARY KEY (worker, directory)
);
CREATE TABLE identity (store_id TEXT NOT NULL);
INSERT INTO identity VALUES (lower(hex(randomblob(16))));
CREATE TABLE notes (job TEXT PRIMARY KEY, tags TEXT NOT NULL, note TEXT NOT NULL);
CREATE TABLE models (
    name TEXT NOT NULL, number INTEGER NOT NULL, id TEXT UNIQUE NOT NULL, record TEXT NOT NULL,
    files TEXT NOT NULL, copies INTEGER NOT NULL, card TEXT NOT NULL, deleted_s REAL,
    PRIMARY KEY (name, number)
);
CREATE TABLE model_aliases (
    name TEXT NOT NULL, alias TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (name, alias)
);
CREATE TABLE model_copies (
    id TEXT NOT NULL, worker TEXT NOT NULL, PRIMARY KEY (id, worker)
);
CREATE TABLE sweeps (
    number INTEGER PRIMARY KEY AUTOINCREMENT, spec TEXT NOT NULL, package TEXT NOT NULL,
    state TEXT NOT NULL, reason TEXT NOT NULL, began_s REAL NOT NULL, ended_s REAL
);
CREATE TABLE trials (
    sweep INTEGER NOT NULL, number INTEGER NOT NULL, job TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (sweep, number)
);
CREATE TABLE commits (number INTEGER NOT NULL);
INSERT INTO commits VALUES (0);
"""


class Database:
    """The open file and the lock on its directory.

    Raises:
        ConfigError: the directory cannot be used, another coordinator uses it, or the file is
            another version's.
        StoreDamaged: the file is damaged, or transactions are missing.
    """

    def __init__(self, state_dir: Path) -> None:
        self._lock = lock(state_dir)
        path = state_dir / FILE_NAME
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        self._newest = -1
        remedy = "stop nothing: workers keep training. Restore a backup into an empty directory"
        try:
            self._newest = os.open(state_dir / NEWEST_NAME, os.O_RDWR | os.O_CREAT, 0o600)
            self._check_version(path)
            damage = self._damage()
            if not damage and (missing := self._missing()):
                damage = f"its last {missing} transactions are missing, as if its log had been cut"
                remedy += f"; to go on with what is left instead, remove {state_dir / NEWEST_NAME}"
        except sqlite3.OperationalError as error:
            self.close()
            raise ConfigError(f"{path} cannot be read: {error}") from error
        except sqlite3.DatabaseError as error:
            damage = str(error)
        except BaseException:
            self.close()
            raise
        if damage:
            self.close()
            raise StoreDamaged(f"{path} is damaged: {damage}", remedy=remedy)

    def _check_version(self, path: Path) -> None:
        version = self._open_schema()
        if version != SCHEMA_VERSION:
            raise ConfigError(
                f"{path} has schema {version}, this dtd writes {SCHEMA_VERSION}",
                remedy="run the dtd version that wrote it, or use another --state-dir",
            )

    def _damage(self) -> str:
        """Return the damage of the pages or the jobs; empty if there is none."""
        found = str(self.read("PRAGMA quick_check(1)")[0][0])
        if found != "ok":
            return one_line(found)
        ((bad,),) = self.read("SELECT COUNT(*) FROM jobs WHERE NOT json_valid(body)")
        return f"{counted(bad, 'job')} cannot be read" if bad else ""

    def _missing(self) -> int:
        """Return how many of the newest synced transactions are missing."""
        ((number,),) = self.read("SELECT number FROM commits")
        known = os.pread(self._newest, _NUMBER.size, 0)
        newest = _NUMBER.unpack(known)[0] if len(known) == _NUMBER.size else 0
        return max(0, int(newest) - int(number))

    def _open_schema(self) -> int:
        """Return the file's schema, that of a new file included."""
        self._connection.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
            f" PRAGMA journal_size_limit={MOST_LOG_PAGES * PAGE_BYTES}"
        )
        version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
        if version:
            return version
        made = f"BEGIN; {_SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT"
        self._connection.executescript(made)
        return SCHEMA_VERSION

    def close(self) -> None:
        """Close the file and give up the directory."""
        self._connection.close()
        if self._newest >= 0:
            os.close(self._newest)
            self._newest = -1
        self._lock.close()

    def fold(self) -> None:
        """Write the log's pages into the file, as far as nobody reads them; costs a sync."""
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def read(self, query: str, *values: object) -> list[sqlite3.Row]:
        return self._connection.execute(query, values).fetchall()

    @contextmanager
    def transaction(self, *, synced: bool) -> Iterator[sqlite3.Cursor]:
        """All or nothing; what failed must not stay open, or nothing later would be durable."""
        cursor = self._connection.cursor()
        cursor.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
        pages = MOST_LOG_PAGES if synced else LOG_PAGES
        cursor.execute(f"PRAGMA wal_autocheckpoint={pages}")
        cursor.execute("BEGIN IMMEDIATE")
        number = 0
        try:
            yield cursor
            if synced:
                cursor.execute("UPDATE commits SET number = number + 1 RETURNING number")
                (number,) = cursor.fetchone()
            cursor.execute("COMMIT")
        except BaseException:
            self._connection.rollback()
            raise
        if synced:
            os.pwrite(self._newest, _NUMBER.pack(number), 0)


def lock(state_dir: Path) -> IO[str]:
    """Take a state directory for this process, until the file is closed; made if missing.

    Raises:
        ConfigError: it cannot be used, or another coordinator uses it.
    """
    try:
        make_directory(state_dir, mode=0o700)
        held = (state_dir / LOCK_NAME).open("w")
    except OSError as error:
        raise ConfigError(
            f"state directory {state_dir} cannot be used: {error.strerror}",
            remedy="choose another with --state-dir",
        ) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        held.close()
        raise ConfigError(
            f"another coordinator uses {state_dir}",
            remedy="stop it, or choose another directory with --state-dir",
        ) from None
    return held


# --- the thread that all blocking calls to the store run in, one at a time, urgent ones first ----
#
# Writing a job (for which a generation waits) and revoking a credential come first, then incidents
# and operators' reads, then printed lines and requests of unauthenticated callers, which are the
# most numerous.  Within each class calls run in the order of submission; callers of the last class
# bound how many of them wait.


SLOW_S: Final = 2.0
"""Training goes on while one call lasts; what is decided meanwhile, new generations, waits."""


class Turn(enum.IntEnum):
    """Priority classes, the most urgent first."""

    URGENT = 0
    ORDINARY = 1
    PATIENT = 2


_LAST: Final = len(Turn)


class StoreThread:
    """Runs functions in a thread of its own.

    Args:
        failed: told of an error that is no disk's, by a call that nothing waits for; in any thread.

    Attributes:
        failures: calls that the disk, or the file on it, has failed.
        failure: why the last call failed; empty when it did not.
    """

    def __init__(self, failed: Callable[[BaseException], object] = lambda _error: None) -> None:
        self._failed = failed
        self._calls: queue.PriorityQueue[tuple[int, int, Callable[[], None]]]
        self._calls = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._closed = False
        self.failures = 0
        self.failure = ""
        self._begun_s: float | None = None
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    async def run(
        self, function: Callable[..., T], *arguments: Any, turn: Turn = Turn.ORDINARY
    ) -> T:
        return await asyncio.wrap_future(self._submit(turn, function, arguments))

    def later(
        self, function: Callable[..., object], *arguments: Any, turn: Turn = Turn.ORDINARY
    ) -> None:
        """Have a function run without waiting for it; failures are told."""
        future = self._submit(turn, function, arguments)
        future.add_done_callback(self._tell_failure)

    def complaint(self) -> str:
        """Why the disk is unreliable; empty when it is not."""
        begun_s = self._begun_s
        lasts_s = 0.0 if begun_s is None else time.monotonic() - begun_s
        return self.failure or (f"one write lasts over {SLOW_S:g} s" if lasts_s > SLOW_S else "")

    async def close(self, last: Callable[[], object]) -> None:
        """Run what was asked for, then `last`, then end."""
        future = self._submit(_LAST, last, ())
        self._closed = True
        await asyncio.wrap_future(future)
        self._thread.join()

    def _submit(
        self, rank: int, function: Callable[..., T], arguments: tuple[Any, ...]
    ) -> Future[T]:
        if self._closed:
            raise RuntimeError("the store is closed")
        future: Future[T] = Future()
        call = functools.partial(self._call, future, function, arguments)
        self._calls.put((rank, next(self._numbers), call))
        return future

    def _tell_failure(self, future: Future[Any]) -> None:
        error = future.exception()
        if isinstance(error, OSError | sqlite3.Error):
            log.error("store_failed", error=str(error))
        elif error is not None:
            self._failed(error)

    def _work(self) -> None:
        rank = -1
        while rank != _LAST:
            rank, _number, call = self._calls.get()
            call()

    def _call(
        self, future: Future[T], function: Callable[..., T], arguments: tuple[Any, ...]
    ) -> None:
        if not future.set_running_or_notify_cancel():
            return
        self._begun_s = time.monotonic()
        try:
            result = function(*arguments)
            self.failure = ""
            future.set_result(result)
        except (OSError, sqlite3.Error) as error:
            self.failures += 1
            self.failure = str(error)
            future.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            future.set_exception(error)
        self._begun_s = None
