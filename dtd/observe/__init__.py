"""Observation of a job: curves, profiles, comparisons of runs."""
