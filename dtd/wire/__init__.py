"""Translates bytes to messages and back: frames, messages, connection states.  Pure; no I/O."""
