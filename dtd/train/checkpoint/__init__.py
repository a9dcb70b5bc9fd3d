"""Checkpoints on a worker's disk: format, writing, retention, and what a state starts from."""
