"""Rows of a job: which ones, in which order, loaded ahead of the step that uses them."""
