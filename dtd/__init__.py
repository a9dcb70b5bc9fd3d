"""dtd, the Distributed Training Daemon: data-parallel PyTorch training as a Linux service.

Importing this package never imports torch.  Read `docs/how-a-step-flows.md` for the way of a
gradient through the folders below.
"""

__version__ = "0.1.0"
