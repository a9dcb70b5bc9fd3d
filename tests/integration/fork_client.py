"""Starts daemons from interpreters that have imported what they need (`fork_server`).

A process gets a prepared interpreter when it runs one of our programs, and when its environment
differs from ours only in what is read later than at the start of an interpreter.  Everything else
is started as usual.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import run as run_unprepared
from typing import IO, Any, Final

from dtd.worker.process.process_state import HASH_SEED
from scripts.cluster.cluster import REPOSITORY
from scripts.cluster.processes import Process
from scripts.cluster.processes import launch as launch_unprepared
from tests.integration import fork_server

PR_SET_CHILD_SUBREAPER: Final = 36
_ADOPTING: Final = threading.Lock()

# Two, since a coordinator and dtdctl do not have torch in memory.
_LIGHT: Final = (
    "dtd.coordinator.main",
    "dtd.ctl.main",
    "dtd.ctl.commands.submit",
    "dtd.ctl.commands.models",
)
_HEAVY: Final = (
    *("dtd.worker.main", "dtd.train.run", "torch.distributed.fsdp", fork_server.COMPILER),
    "dtd.worker.job.by_hand",
)
_SCRIPTS: Final = ("loop_script", "classify", "gpt")
"""What users run by hand; a test says in PYTHONPATH where it is."""

_RANKS: Final = "scripts.benchrun.ranks"

_UNDERSTOOD: Final = {"capture_output", "text", "check", "stdin", "timeout", "env", "cwd"}
_WRAPPERS: Final = {"/usr/bin/env --chdir": "directory", "/usr/bin/nsenter --net": "network"}
_READ_AT_START: Final = (
    "PYTHON",
    "LC_",
    "LANG",
    "LD_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "MALLOC_",
    "ATEN_",
)


class ForkedProcess:
    """A child of this process, with what `subprocess.Popen` offers for it."""

    def __init__(self, pid: int, arguments: Sequence[str]) -> None:
        self.pid = pid
        self._arguments = arguments
        self._pidfd = os.pidfd_open(pid)
        self._lock = threading.Lock()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
                    os.close(self._pidfd)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code.

        Raises:
            TimeoutExpired: it still runs after so many seconds.
        """
        code = self.poll()
        if code is None:
            with contextlib.suppress(OSError, ValueError):  # another thread has seen its end
                select.select([self._pidfd], [], [], timeout)
            code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self._arguments, timeout or 0.0)
        return code


class ForkServer:
    """An interpreter with these modules, started when it is first needed.

    Args:
        modules: what it imports.
        asker: where one is asked that runs already.
    """

    def __init__(self, modules: Sequence[str], asker: socket.socket | None = None) -> None:
        self._modules = modules
        self._lock = threading.Lock()
        self._socket = asker
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        streams: Sequence[int],
        environment: Mapping[str, str],
        directory: str,
        network: str,
    ) -> ForkedProcess:
        """Run a module in a process of its own, in a directory and a network namespace."""
        request = {
            "module": module,
            "arguments": arguments,
            "environment": dict(environment),
            "directory": directory,
            "network": network,
            "parent": os.getpid(),
        }
        with self._lock:
            connection = self._socket or self._begin()
            with _adopting():
                socket.send_fds(connection, [json.dumps(request).encode()], streams)
                answer = connection.recv(64)
            assert answer, "the fork server is gone"
        return ForkedProcess(int(answer), [module, *arguments])

    def close(self) -> None:
        """End it; what it has forked goes on."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()

    def _begin(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # What daemons of a test are to import comes with their own environment; dtd from here.
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **HASH_SEED}
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-P", fork_server.__file__, str(its.fileno()), *self._modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                env=environment,
                start_new_session=True,
            )
        for size in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            ours.setsockopt(socket.SOL_SOCKET, size, fork_server.MAX_REQUEST_BYTES)
        self._socket = ours
        return ours


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Processes below this one whose parent dies become children of this one."""
    prctl = ctypes.CDLL(None).prctl
    with _ADOPTING:  # it is one setting of the whole process
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            yield
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, 0)


class ForkServers:
    """Starts programs, ours from prepared interpreters; from this one alone if it is given."""

    def __init__(self, only: ForkServer | None = None) -> None:
        light, self._heavy = only or ForkServer(_LIGHT), only or ForkServer(_HEAVY)
        self._servers = {
            **dict.fromkeys(("dtd.coordinator.main", "dtd.ctl.main"), light),
            **dict.fromkeys(("dtd.worker", _RANKS, *fork_server.LAUNCHERS, *_SCRIPTS), self._heavy),
        }
        self._environment = dict(os.environ)

    def launch(
        self,
        command: Sequence[str],
        log: IO[bytes],
        environment: Mapping[str, str],
        talk: socket.socket | None = None,
    ) -> Process:
        """In place of `scripts.cluster.processes.launch`.

        Also for a command of `env --chdir=` or of `nsenter --net=`.
        """
        wrapper, _, place = " ".join(command[:2]).partition("=")
        program = command[2:] if wrapper in _WRAPPERS else command
        if not self._knows(program, environment):
            return launch_unprepared(command, log, environment, talk)
        where = {_WRAPPERS[wrapper]: place} if wrapper in _WRAPPERS else {}
        streams = (log, log) if talk is None else (talk, talk, log)
        return self.start(program, streams, environment, **where)

    def start(
        self,
        command: Sequence[str],
        streams: Sequence[IO[bytes] | socket.socket],
        environment: Mapping[str, str],
        **where: str,
    ) -> ForkedProcess:
        """Start a module, whichever it is, with the last of the standard streams.

        Args:
            command: the interpreter, -m, the module and its arguments.
            streams: for output alone, or for input and output.
            environment: all of its variables.
            where: its `directory` and its `network`, if they are not those of this process.
        """
        here = {"directory": str(Path.cwd()), "network": f"/proc/{os.getpid()}/ns/net"}
        with Path(os.devnull).open("rb") as nothing:
            return self._servers.get(command[2], self._heavy).start(
                command[2],
                command[3:],
                streams=[stream.fileno() for stream in (nothing, *streams)][-fork_server.STREAMS :],
                environment=environment,
                **{**here, **where},
            )

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """In place of `subprocess.run`, where the text that a program of ours prints is wanted."""
        environment = os.environ if options.get("env") is None else options["env"]
        captures = options.get("capture_output") and options.get("text")
        if not (options.keys() <= _UNDERSTOOD and captures and self._knows(command, environment)):
            return run_unprepared(command, **options)  # noqa: PLW1510  as it was called
        directory = str(options.get("cwd") or Path.cwd())
        timeout_s = options.get("timeout")
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self.start(command, (out, err), environment, directory=directory)
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                raise
            printed = [_text(stream) for stream in (out, err)]
        done = subprocess.CompletedProcess(command, code, *printed)
        if options.get("check"):
            done.check_returncode()
        return done

    def close(self) -> None:
        """End the servers, not what they have forked."""
        for server in {*self._servers.values(), self._heavy}:
            server.close()

    def _knows(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        known = list(command[:2]) == [sys.executable, "-m"] and command[2] in self._servers
        return known and _at_start(environment) == _at_start(self._environment)


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value
        for key, value in environment.items()
        if key.startswith(_READ_AT_START)
        and key != "PYTHONPATH"
        and not (key.endswith("_NUM_THREADS") and value == "1")  # as `fork_server` has it
    }


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode()
