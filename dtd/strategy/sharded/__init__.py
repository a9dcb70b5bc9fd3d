"""Sharded training: each rank updates a part of the state, and others mirror it."""
