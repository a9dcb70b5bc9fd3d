"""dtd, the Distributed Training Daemon: data-parallel PyTorch training as a Linux service.

Importing this package never imports torch.  `docs/how-a-step-flows.md` follows a gradient through
the folders below.
"""

__version__ = "0.1.0"
