"""The worker daemon: the member core, the data plane and the training thread around it."""
