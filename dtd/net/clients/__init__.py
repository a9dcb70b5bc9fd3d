"""Blocking clients: of the coordinator, of data ports, and of a cluster that is joined."""
