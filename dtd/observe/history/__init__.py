"""Decisions about the coordinator's history of jobs' figures; no file and no clock."""
