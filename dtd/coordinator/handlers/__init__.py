"""Answers to operators and workers, one file for each kind of request."""
