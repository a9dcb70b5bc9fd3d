"""A process that has imported what daemons import, and forks them in 0.02 s instead of 2 s.

    python -P fork_server.py SOCKET_FD MODULE...

What is forked is an ordinary process with its own session, descriptors, environment and arguments;
it runs a module from its first line, as `python -m MODULE` does.  Only importing is saved.

A worker replaces itself after each job with execve, and would import everything again.  It has a
twin that waits, as ready as it was itself, and becomes a program that waits for the twin and ends
as that does: session and process group stay, the process id that the coordinator is told is the
twin's.  Tests with the fixture `unprepared` see the real execve.

A launcher's daemons are its children, so it has a server of its own, forked with what is imported.

A request is JSON, with the three standard streams as descriptors; the answer is the new process id.
The process that asks becomes the parent: whatever is between dies first, and the asker is a
subreaper meanwhile.  So it waits for the new process, and the kernel kills that one with it, as if
it had started it by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import Any

PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000
WORKER = "dtd.worker"
LAUNCHERS = ("scripts.launch_local", "scripts.chaos", "scripts.benchrun")
BEGIN = b"b"
STREAMS = 3
COMPILER = "torch._dynamo"
"""Torch imports it late: 1.2 s where a task has an optimizer of its own, or compiles."""

# Lets a process begin, and ends as that one does; given are its id, and a descriptor to tell it by.
WAIT = f"""
import os, signal, sys
twin, tell = map(int, sys.argv[1:])
os.closerange({STREAMS}, tell)
os.closerange(tell + 1, os.sysconf("SC_OPEN_MAX"))
os.write(tell, {BEGIN!r})
os.close(tell)
code = os.waitstatus_to_exitcode(os.waitpid(twin, 0)[1])
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""
MAX_REQUEST_BYTES = 1 << 20


class Kept(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives a module that was imported before to whoever imports it; until then there is none."""

    def __init__(self, name: str) -> None:
        self._name, self._module = name, sys.modules.pop(name)

    def find_spec(self, name: str, *_others: object) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == self._name else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        spec.submodule_search_locations = [*self._module.__path__]
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed."""


def main() -> None:
    """Import, then fork for each request until whoever asks is gone."""
    asker = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
        if name.endswith(".main"):
            del sys.modules[name]  # `runpy` imports it anew, as __main__
    if COMPILER in sys.modules:  # a worker that has it is given more time for its first steps
        sys.meta_path.insert(0, Kept(COMPILER))
    # A forked thread keeps the number of threads that its torch has here; a fresh daemon's event
    # loop takes that of its job, which is 1 unless it says otherwise.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # otherwise the first collection of each process copies all of it
    _serve(asker)


def _serve(asker: socket.socket) -> None:
    """Fork for each request; never returns."""
    while True:
        data, streams, _flags, _address = socket.recv_fds(asker, MAX_REQUEST_BYTES, STREAMS)
        if not data:
            os._exit(0)
        request = json.loads(data)
        # Read by the new process, which begins as soon as nobody can write any more.
        begun, begin = os.pipe()
        pid = _fork_twice(asker, request, streams, begun, begin)
        for stream in (*streams, begun):
            os.close(stream)
        asker.sendall(str(pid).encode())
        os.close(begin)


def _fork_twice(
    asker: socket.socket, request: dict[str, Any], streams: Sequence[int], begun: int, begin: int
) -> int:
    told, tell = os.pipe()
    between = os.fork()
    if not between:
        pid = os.fork()
        if pid:
            os.write(tell, str(pid).encode())
            os._exit(0)
        for descriptor in (told, tell, begin, asker.detach()):
            os.close(descriptor)
        _become(request, streams, begun)
    os.close(tell)
    pid = int(os.read(told, 64))
    os.close(told)
    os.waitpid(between, 0)
    return pid


def _become(request: dict[str, Any], streams: Sequence[int], begun: int) -> None:
    """Never returns."""
    code = 1
    try:
        os.read(begun, 1)
        os.setsid()
        _die_with(request["parent"])
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
        os.closerange(STREAMS, max(*streams, begun) + 1)
        _open_streams()
        _enter(request["network"])
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        beside = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        sys.path[:0] = [request["directory"], *beside]
        sys.argv = ["-m", *request["arguments"]]
        if request["module"] == WORKER:
            os.environ["PYTHONHASHSEED"] = "0"  # as this interpreter has it, so it is not replaced
            _have_a_twin()
        elif request["module"] in LAUNCHERS:
            _have_a_server()
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as leaving:
        code = _exit_code(leaving)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001  as an interpreter ends
        traceback.print_exc()
    finally:
        _leave(code)


def _open_streams() -> None:
    """As an interpreter begins; those that it has keep in mind what they were opened for."""
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", 1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _have_a_server() -> None:
    """Daemons that this process starts are forked from what it has imported."""
    from scripts.cluster import processes
    from tests.integration.fork_client import ForkServer, ForkServers

    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        ours.close()
        os.setsid()
        with open(os.devnull, "r+b") as nothing:  # noqa: PTH123
            for stream in range(STREAMS):
                os.dup2(nothing.fileno(), stream)
        _serve(its)
    its.close()
    processes.launch = ForkServers(ForkServer((), asker=ours)).launch


def _enter(network: str) -> None:
    """Move into a network namespace, unless this is it."""
    if os.path.samefile(network, "/proc/self/ns/net"):  # noqa: PTH121
        return
    with open(network) as space:  # noqa: PTH123
        if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def _die_with(parent: int) -> None:
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) or os.getppid() != parent:
        os._exit(0)


def _have_a_twin() -> None:
    """Returns in this process at once, and in its twin when this one replaces itself."""
    this = os.getpid()
    told, tell = os.pipe()
    twin = os.fork()
    if twin:
        os.close(told)
        os.execve = functools.partial(_hand_over, twin, tell)  # type: ignore[assignment]
        return
    os.close(tell)
    _die_with(this)
    if os.read(told, len(BEGIN)) != BEGIN:
        os._exit(0)
    os.close(told)
    _have_a_twin()


def _hand_over(
    twin: int, tell: int, path: str, arguments: Sequence[str], _environment: object
) -> None:
    """In place of `os.execve`: the twin goes on, after this process has given up all that it has.

    Its descriptors are closed by the program that replaces it, when its threads are gone: a thread
    of a C++ library may abort the process when its descriptors are closed before.
    """
    assert arguments[1:4] == ["-P", "-m", WORKER], arguments
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the twin answers them
    os.set_inheritable(tell, True)  # noqa: FBT003 - takes no keyword
    os.execv(path, [path, "-I", "-S", "-c", WAIT, str(twin), str(tell)])


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    print(leaving.code, file=sys.stderr)
    return 1


def _leave(code: int) -> None:
    """As an interpreter ends, without taking everything apart that was imported."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
