"""Profiles of a running job: spans of every worker on one clock, and what limits its step."""
