"""Whether hosts can be booted here, and why not."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from scripts.chaosrun.namespaces import Namespace, may_make
from scripts.systemdcluster.cgroups import hierarchies

# Each with the package of Debian's that has it.
_PROGRAMS: Final = {
    "systemd-nspawn": "systemd-container",
    "systemctl": "systemd",
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "mount": "mount",
}
_SYSTEMD: Final = Path("/usr/lib/systemd/systemd")


def why_not() -> str:
    """Why no host can be booted here, in words; empty: it can be tried."""
    if os.geteuid() != 0:
        return "only root can boot hosts"
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            return f"{program} is not installed (apt-get install {package})"
    if not _SYSTEMD.exists():
        return "this machine's files have no systemd to boot (apt-get install systemd)"
    if not all(may_make(kind) for kind in ("net", "mnt")):
        return "this process may not make namespaces: it is in a container without privileges"
    if not any(os.access(root, os.W_OK) for root in hierarchies()):
        return "no hierarchy of control groups is mounted that can be written to"
    return _cannot_mount() or _cannot_shape()


def _cannot_mount() -> str:
    """Try what a host's disk is made of."""
    space = Namespace("mnt")
    try:
        with tempfile.TemporaryDirectory(prefix="dtd-systemd-") as directory:
            space.run("mount", "--make-rprivate", "/")
            space.run("mount", "-t", "tmpfs", "dtd", directory)
            upper, work, root = (f"{directory}/{name}" for name in ("upper", "work", "root"))
            space.run("mkdir", upper, work, root)
            layers = f"lowerdir=/,upperdir={upper},workdir={work}"
            space.run("mount", "-t", "overlay", "-o", layers, "dtd", root)
    except subprocess.CalledProcessError as error:
        return f"overlay file systems cannot be mounted here: {_said(error)}"
    finally:
        space.close()
    return ""


def _cannot_shape() -> str:
    """Try what a cable is made of."""
    space = Namespace("net")
    try:
        space.run("ip", "link", "add", "name", "a", "type", "veth", "peer", "name", "b")
        space.run("ip", "link", "add", "name", "c", "type", "bridge")
        bucket = ("tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms")
        space.run("tc", "qdisc", "add", "dev", "a", "root", *bucket)
    except subprocess.CalledProcessError as error:
        return f"the kernel lacks a part of the network: {_said(error)}"
    finally:
        space.close()
    return ""


def _said(error: subprocess.CalledProcessError) -> str:
    return " ".join(error.stderr.decode(errors="replace").split())
