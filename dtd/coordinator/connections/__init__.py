"""Connections of workers and operators to the coordinator, and their limits."""
