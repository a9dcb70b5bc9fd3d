"""Bytes to messages and back: frames, messages, the connection's life cycle.  Pure; no I/O."""
