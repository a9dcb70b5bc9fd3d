"""What the instance of a worker's unit says: `dtd-worker@cuda0-left` trains on cuda:0.  Pure.

An instance is a device, and after a dash anything that tells two workers of one device apart.  It
stands above the configuration file, which all workers of a host share, and below a flag or a
variable, which can be given to one alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from dtd.errors import ConfigError
from dtd.names import name_of

_INSTANCE: Final = re.compile(r"(cpu|cuda)(0|[1-9][0-9]{0,2})?(-[A-Za-z0-9._-]{1,15})?")
_MAX_HOST_CHARACTERS: Final = 40
"""A name has 64 characters at most, an instance 23."""


def device_of(instance: str) -> str:
    """The device that an instance names: "cpu" or "cuda:N".

    Raises:
        ConfigError: it names none.
    """
    match = _INSTANCE.fullmatch(instance)
    kind, number = match.group(1, 2) if match else ("", None)
    if (kind, number is None) not in (("cpu", True), ("cuda", False)):
        raise ConfigError(
            f"--instance: {instance!r} names no device",
            remedy="name the unit dtd-worker@cpu, dtd-worker@cuda0, or dtd-worker@cpu-2",
        )
    return kind if number is None else f"{kind}:{number}"


def with_instance(
    flags: Mapping[str, object], environ: Mapping[str, str], host: str
) -> dict[str, object]:
    """The flags, with what `--instance` says of device and name where nothing else does.

    Args:
        flags: as given, by name.
        environ: the environment; DTD_DEVICE and DTD_NAME win over the instance.
        host: what a worker's name begins with.

    Raises:
        ConfigError: the instance names no device.
    """
    filled = dict(flags)
    instance = filled.pop("instance", None)
    if instance is None:
        return filled
    device = device_of(str(instance))
    if not environ.get("DTD_DEVICE"):
        filled.setdefault("device", device)
    if not environ.get("DTD_NAME"):
        named = name_of(host, most=_MAX_HOST_CHARACTERS) or "worker"
        filled.setdefault("name", f"{named}-{instance}")
    return filled
