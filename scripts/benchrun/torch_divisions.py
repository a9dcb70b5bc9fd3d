"""Names of torch's divisions of a state among ranks; for processes without torch, too."""

from __future__ import annotations

from typing import Final

ZERO: Final = "zero"
FSDP: Final = "fsdp"
FSDP_KEEPS: Final = "fsdp-keeps"
"""`FSDP` whose parameters stay gathered between forward and backward."""
