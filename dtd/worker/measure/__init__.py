"""Measurements of this worker: its host, its links, steps of a job, and their profiles."""
