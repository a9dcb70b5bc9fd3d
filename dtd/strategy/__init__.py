"""Strategies: how the rows of a step become an update; one interface, one file each."""
