"""Hosts with a systemd each and a network between them, dtd on all, and their faults."""
