"""Schedules of the ring and the star, and the machine that follows them.  Pure; no I/O."""
