"""Sweeps: which trials begin and end, and when."""
