"""A worker's data port: its listener, and the resources that others fetch from it."""
