"""Decisions of a training thread: the live state, the prepared step, and the next actions."""
