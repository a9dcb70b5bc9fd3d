"""Checkpoints on disk: their files, parts, choice and retention; without torch."""
