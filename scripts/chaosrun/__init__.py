"""Faults for real daemons: a cluster that can be hurt, a plan of how, and what came of it."""
