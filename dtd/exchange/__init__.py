"""Transports: how the members of a generation exchange bytes; one interface, one file each."""
