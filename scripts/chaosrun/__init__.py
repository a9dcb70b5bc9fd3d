"""Faults for real daemons: a cluster that faults can be injected into, plans, and outcomes."""
