"""Profiles of a running job: spans of every worker on one clock, and the limit of its step."""
