"""Checkpoints on a worker's disk: format, writing, retention, and the state to start from."""
